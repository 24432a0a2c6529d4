//! Goal: what the types promise to the compiler stays promised: `Send`, `Sync` and `'static` of types
//! and futures, and traits that can be objects. Nothing runs here but the compiler.

use leasehold_core::{
    AcquireError, BackendContext, BackendError, FencePost, FencedStore, Lease, LeaseAdmin, LeaseBackend,
    LeaseClient, LeaseName, LeaseOver, MemoryBackend, PollWaiter, RenewError, Settings, Sleep, Token,
    TryAcquire, Wait, Waiter, Watchdog, WatchdogError,
};

fn both<T: Send + Sync + 'static>() {}
fn send<T: Send>(_: &T) {}
const _: fn(&dyn LeaseBackend, &dyn LeaseAdmin, &dyn FencedStore, &dyn Waiter) = |_, _, _, _| {};

#[test]
fn types_cross_threads() {
    both::<Lease>();
    both::<LeaseClient>();
    both::<Watchdog>();
    both::<BackendContext>();
    both::<MemoryBackend>();
    both::<Settings>();
    both::<LeaseName>();
    both::<Token>();
    both::<FencePost>();
    both::<TryAcquire>();
    both::<Sleep>();
    both::<PollWaiter>();
    both::<(AcquireError, BackendError, RenewError, LeaseOver, WatchdogError)>();
}

#[test]
fn futures_cross_threads() {
    let futures = |client: LeaseClient, name: LeaseName, settings: Settings, lease: Lease| {
        send(&client.try_acquire(&name, &settings));
        send(&client.acquire(&name, &settings, Wait::Forever));
        send(&client.acquire_observed(&name, &settings, Wait::Forever, |_| {}));
        send(&client.inspect(&name));
        send(&client.shutdown(std::time::Duration::ZERO));
        send(&lease.lost());
        send(&lease.run(async {}));
        send(&lease.renew());
        send(&lease.set_ttl(Settings::TTL));
        send(&lease.release());
    };
    let _ = futures;
}
