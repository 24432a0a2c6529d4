//! Many runs of the program contend for a few names in one SQLite file, and are killed and frozen.

mod campaign;

use campaign::{Arena, Campaign, job};
use leasehold_testkit::Scratch;

/// Not a test of its own: what the jobs of the campaign do.
#[test]
fn job() {
    job::play();
}

#[test]
fn no_two_jobs_of_one_name_overlap_whatever_is_killed_or_frozen() {
    let disk = Scratch::new();
    let store = format!("sqlite://{}", disk.join("leases.db").display());
    let campaign = Campaign::new(Arena { store, names: 3, is_fenced: false });
    let outcome = campaign.run(|_| {});
    assert_eq!(outcome.refused, 0, "there is no fence");
}
