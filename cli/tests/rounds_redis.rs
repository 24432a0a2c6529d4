//! Many runs of the program contend for a few names on one Redis server. They are killed and frozen, and so is
//! the server; the way to it is cut for less and for more than the ttl, its scripts are flushed, and it is
//! started again with its data and without.
//!
//! A server that lost its data may grant a name whose holder has not been told yet: until that holder's next
//! renewal the fence at the resource is what excludes it. Everything else overlaps nowhere.

mod campaign;

use std::time::Duration;

use campaign::faults::Fault;
use campaign::{Arena, Campaign, Outcome, Rng, StoreFault, TTL, job};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::redis::{Keep, Persistence, RedisOptions, RedisServer};
use leasehold_testkit::{boot_now, quick};

/// Not a test of its own: what the jobs of the campaign do.
#[test]
fn job() {
    job::play();
}

/// What is done to the server and to the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    ShortCut,
    LongCut,
    ShortFreeze,
    LongFreeze,
    ScriptFlush,
    RestartWithData,
    RestartWithout,
}

use Sabotage::{LongCut, LongFreeze, RestartWithData, RestartWithout, ScriptFlush, ShortCut, ShortFreeze};

/// Each block, in an order that the seed shuffles.
const BLOCK: [Sabotage; 12] = [
    ShortCut,
    ShortCut,
    ShortCut,
    ShortFreeze,
    ShortFreeze,
    ScriptFlush,
    ScriptFlush,
    RestartWithData,
    RestartWithData,
    RestartWithout,
    LongCut,
    LongFreeze,
];

impl Sabotage {
    /// One name for all reports.
    const fn name(self) -> &'static str {
        match self {
            ShortCut => "cut shorter than the ttl",
            LongCut => "cut longer than the ttl",
            ShortFreeze => "server frozen for less than the ttl",
            LongFreeze => "server frozen for more than the ttl",
            ScriptFlush => "script flush",
            RestartWithData => "restart with data",
            RestartWithout => "restart without data",
        }
    }

    fn is_long(self) -> bool {
        matches!(self, LongCut | LongFreeze)
    }

    fn carry_out(self, server: &RedisServer, link: &Proxy, rng: &mut Rng) -> StoreFault {
        let from = boot_now();
        // What is left of a lease when a renewal is due is two thirds: a short fault leaves room for a late one.
        let lasting = if self.is_long() { rng.part(TTL, 130, 170) } else { rng.part(TTL, 10, 30) };
        match self {
            ShortCut | LongCut => {
                link.black_hole();
                std::thread::sleep(lasting);
                link.heal();
            }
            ShortFreeze | LongFreeze => {
                server.freeze();
                std::thread::sleep(lasting);
                server.thaw();
            }
            ScriptFlush => {
                server.must(["SCRIPT", "FLUSH", "SYNC"]);
            }
            RestartWithData => server.restart(Keep::Data).expect("restarted"),
            RestartWithout => server.restart(Keep::Nothing).expect("restarted"),
        }
        StoreFault {
            what: self.name(),
            from,
            to: boot_now(),
            ends_leases: self.is_long() || self == RestartWithout,
            is_down: self != ScriptFlush,
            forgets: self == RestartWithout,
        }
    }
}

/// Does one after another until all rounds have ended.
fn sabotage(campaign: &Campaign, server: &RedisServer, link: &Proxy) {
    let mut rng = Rng(campaign.seed ^ 0x5EED);
    loop {
        let mut block = BLOCK;
        for last in (1..block.len()).rev() {
            block.swap(last, rng.below(last as u64 + 1) as usize);
        }
        for what in block {
            // Time for grants, and for holders to get over the one before.
            let until = boot_now() + rng.part(TTL, 60, 130);
            while boot_now() < until {
                if campaign.is_over() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            campaign.note(what.carry_out(server, link, &mut rng));
        }
    }
}

/// How the store's faults met the holders: met by, lost with, and lived through.
fn meetings(outcome: &Outcome, what: Sabotage) -> (usize, usize, usize) {
    let faults: Vec<&StoreFault> =
        outcome.store_faults.iter().filter(|fault| fault.what == what.name()).collect();
    let (mut met, mut lost, mut lived) = (0, 0, 0);
    for grant in &outcome.grants {
        // What a fault of its own did to a round says nothing of the store's.
        let round = outcome.rounds.iter().find(|round| round.id == grant.id);
        let code = round.filter(|round| round.fault == Fault::None).map(|round| round.ended.code);
        // The last sign of life of a job that a fault ended may lie within the fault.
        for fault in faults.iter().filter(|fault| grant.begun <= fault.from && fault.from <= grant.last) {
            met += 1;
            lost += usize::from(code == Some(76));
            lived += usize::from(code == Some(0) && fault.to < grant.last);
        }
    }
    println!(
        "  {:>2} × {}: {met} holders met; of those without a fault of their own {lost} lost, {lived} lived through it",
        faults.len(),
        what.name()
    );
    (met, lost, lived)
}

#[test]
fn no_two_jobs_of_one_name_overlap_whatever_is_done_to_server_and_link() {
    let options = RedisOptions::new().persistence(Persistence::AppendAlways);
    let server = options.start().expect("a server of this test's own");
    let link = server.proxy().expect("a proxy");
    let store = server.url_at(link.addr(), None);
    let campaign = Campaign::new(Arena { store, names: 4, is_fenced: true });
    let outcome = campaign.run(|campaign| sabotage(campaign, &server, &link));
    let all = [ShortCut, LongCut, ShortFreeze, LongFreeze, ScriptFlush, RestartWithData, RestartWithout];
    let seen = all.map(|what| (what, meetings(&outcome, what)));
    println!("  {} late writes after a restart without data, all refused by the fence", outcome.refused);
    if quick() {
        return;
    }
    let mut lost_to_long = 0;
    for (what, (met, lost, lived)) in seen {
        assert!(met >= 3, "{what:?} met {met} holders");
        match what {
            LongCut | LongFreeze => {
                lost_to_long += lost;
                assert_eq!(lived, 0, "a lease was held through {what:?}");
            }
            // A short hold may end before its holder is told.
            RestartWithout => assert!(lost >= 1 && outcome.refused >= 1, "{what:?}: nobody was late"),
            _ => assert!(lived >= 2, "{lived} holders lived through {what:?}"),
        }
    }
    // Many holds are shorter than what is left of their ttl, and end well before it.
    assert!(lost_to_long >= 1, "no long fault cost a lease");
}
