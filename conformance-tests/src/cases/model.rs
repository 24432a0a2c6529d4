//! Random sequences of calls, beside a small reference model.

use std::time::Duration;

use crate::case::check;
use crate::model::{Limits, agree};
use crate::seed::seed;
use crate::{Bench, Failed};

/// I1, I2, I4, I8: whatever is called in whatever order, from several connections, the store says what
/// the model says.
pub(crate) async fn random_calls_agree_with_the_model(bench: Bench) -> Result<(), Failed> {
    let limits = match bench.manual() {
        Some(_) => Limits { sequences: 96, calls: 40, time: Duration::from_secs(20) },
        // Nothing runs out here, and calls may travel.
        None => Limits { sequences: 40, calls: 40, time: Duration::from_secs(10) },
    };
    let seed = seed()?;
    let agreed = agree(&bench, seed, limits).await?;
    eprintln!("{}: model and store agree, seed {seed}: {agreed:?}", bench.harness());
    // The danger was there.
    check!(agreed.sequences >= 4 && agreed.calls >= 40, "too little was run: {agreed:?}");
    check!(agreed.grants > 0 && agreed.refusals > 0 && agreed.late > 0, "nothing happened: {agreed:?}");
    check!(agreed.stale > 0 || bench.node().await?.fenced().is_err(), "nothing was stale: {agreed:?}");
    Ok(())
}
