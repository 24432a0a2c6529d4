//! The hand-over between the clock thread and its callers, under shuttle's scheduler: built and run
//! with `RUSTFLAGS="--cfg shuttle" cargo test -p leasehold-core --lib model`.
//!
//! Shuttle runs the real `Shared`, alarm and cell on its own threads and tries thousands of
//! schedules, random and PCT (Burckhardt et al., ASPLOS 2010).

use std::sync::Arc as StdArc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::step::{Event, Key, State};
use super::{Core, Order, Shared};
use crate::cell::{Extended, LeaseCell};
use crate::rng::Jitter;
use crate::sync::{Arc, Mutex};
use crate::timers::Timers;
use crate::{
    BootTime, Claim, Clock, EndReason, LeaseName, LeaseState, ManualClock, OwnerId, Settings, Token,
};

const TTL: Duration = Duration::from_secs(10);

struct Model {
    clock: ManualClock,
    shared: StdArc<Shared>,
    inbox: mpsc::UnboundedReceiver<Order>,
    group: u32,
}

impl Model {
    fn new() -> Self {
        let clock = ManualClock::new();
        let (orders, inbox) = mpsc::unbounded_channel();
        let alarm = clock.alarm().expect("a manual alarm needs nothing");
        let shared = StdArc::new(Shared {
            clock: StdArc::new(clock.clone()),
            alarm,
            core: Mutex::new(Core {
                leases: State::new(Jitter::with_seed(1)),
                timers: Timers::default(),
                next_wake: BootTime::ZERO,
                stopping: false,
                steps: 0,
            }),
            orders,
        });
        let group = shared.add_group(
            StdArc::new(super::step::testing::ProfileOnly::new()),
            StdArc::new(super::Lanes::new(Duration::from_secs(5))),
        );
        Model { clock, shared, inbox, group }
    }

    fn cell(&self, settings: &Settings) -> Arc<LeaseCell> {
        let name: LeaseName = "n".parse().expect("legal");
        let token = Token::new(1).expect("legal");
        let now = self.clock.now();
        Arc::new(LeaseCell::new(
            Claim::new(name, OwnerId::from_bytes([7; 16]), Some(token)),
            token,
            settings.plan(),
            Duration::ZERO,
            TTL,
            now,
            (BootTime::MAX, EndReason::MaxHold),
            now + TTL,
        ))
    }

    fn clock_thread(&self) -> shuttle::thread::JoinHandle<()> {
        let shared = StdArc::clone(&self.shared);
        shuttle::thread::spawn(move || while shared.turn() {})
    }
}

fn explore(f: impl Fn() + Send + Sync + 'static) {
    let f = StdArc::new(f);
    let random = StdArc::clone(&f);
    shuttle::check_random(move || random(), 3_000);
    shuttle::check_pct(move || f(), 3_000, 3);
}

/// A registration that falls between "compute the next wake" and "sleep" is not slept over.
#[test]
fn a_lease_registered_while_the_clock_thread_goes_to_sleep_ends_on_time() {
    explore(|| {
        let model = Model::new();
        let clock_thread = model.clock_thread();
        let cells: Vec<_> = (0..2)
            .map(|_| {
                let cell = model.cell(&Settings::new().ttl(TTL).fixed());
                let (shared, group) = (StdArc::clone(&model.shared), model.group);
                let (handed, anchor) = (Arc::clone(&cell), model.clock.now());
                let registering = shuttle::thread::spawn(move || _ = shared.add(group, handed, anchor));
                (cell, registering)
            })
            .collect();
        let cells: Vec<_> = cells
            .into_iter()
            .map(|(cell, registering)| {
                registering.join().expect("registered");
                cell
            })
            .collect();
        model.clock.advance(TTL);
        model.clock.settle();
        for cell in cells {
            assert_eq!(cell.deadline(), None, "the clock thread slept over a deadline");
        }
        model.shared.stop();
        clock_thread.join().expect("clock thread");
    });
}

/// A renewal that is due is ordered, whenever it was registered.
#[test]
fn a_renewal_registered_while_the_clock_thread_goes_to_sleep_is_ordered() {
    explore(|| {
        let mut model = Model::new();
        let clock_thread = model.clock_thread();
        let cell = model.cell(&Settings::new().ttl(TTL));
        model.shared.add(model.group, cell, model.clock.now());
        model.clock.advance(TTL / 3);
        model.clock.settle();
        assert!(matches!(model.inbox.try_recv(), Ok(Order::Renew(_))), "the renewal was slept over");
        model.shared.stop();
        clock_thread.join().expect("clock thread");
    });
}

/// A failing check is final, a late reply resurrects nothing, and the end has one cause (I6).
#[test]
fn checks_renewals_and_the_clock_thread_agree_on_one_end() {
    explore(|| {
        let model = Model::new();
        let cell = model.cell(&Settings::new().ttl(TTL));
        let key = model.shared.add(model.group, Arc::clone(&cell), model.clock.now());
        let from = cell.deadline().expect("held");
        let anchor = model.clock.now();
        let clock_thread = model.clock_thread();
        let (replied, shared) = (Arc::clone(&cell), StdArc::clone(&model.shared));
        let reply = shuttle::thread::spawn(move || {
            shared.answer([Event::Renewed { key, from, anchor: anchor + TTL / 2, granted: TTL }]);
            drop(replied);
        });
        let (checked, clock) = (Arc::clone(&cell), model.clock.clone());
        let checks = shuttle::thread::spawn(move || {
            let mut failed = false;
            for _ in 0..4 {
                let valid = checked.is_valid(clock.now(), |_| None);
                assert!(!(failed && valid), "valid again after a failed check");
                failed |= !valid;
            }
        });
        model.clock.advance(TTL); // exactly the first deadline: before or after the reply
        reply.join().expect("reply");
        checks.join().expect("checks");
        let over = cell.deadline().is_none();
        assert_eq!(cell.state(model.clock.now()).is_over(), over);
        if over {
            let late = cell.extend(from, anchor + TTL, TTL, from.before(Duration::from_nanos(1)));
            assert_eq!(late, Extended::Over);
            assert_eq!(cell.deadline(), None, "a late reply resurrected the lease");
        }
        model.shared.stop();
        clock_thread.join().expect("clock thread");
    });
}

/// After a release no reply and no step touches the lease or its slot (I8).
#[test]
fn a_release_is_safe_against_a_renewal_in_flight() {
    explore(|| {
        let model = Model::new();
        let cell = model.cell(&Settings::new().ttl(TTL));
        let key: Key = model.shared.add(model.group, Arc::clone(&cell), model.clock.now());
        let from = cell.deadline().expect("held");
        let clock_thread = model.clock_thread();
        let (shared, anchor) = (StdArc::clone(&model.shared), model.clock.now());
        let reply = shuttle::thread::spawn(move || {
            shared.answer([Event::Renewed { key, from, anchor, granted: TTL }]);
        });
        cell.end(LeaseState::Ended(EndReason::Released));
        assert!(model.shared.remove(key));
        reply.join().expect("reply");
        assert_eq!(cell.state(from), LeaseState::Ended(EndReason::Released));
        model.clock.advance(TTL * 2);
        model.clock.settle();
        assert_eq!(cell.state(from), LeaseState::Ended(EndReason::Released));
        assert_eq!(model.shared.lock().leases.next_wake(), BootTime::MAX);
        model.shared.stop();
        clock_thread.join().expect("clock thread");
    });
}
