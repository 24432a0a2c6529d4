//! What the shared suite cannot see of this store.

use std::time::Duration;

use leasehold_core::{
    AcquireRequest, Attempt, LeaseBackend, LeaseName, OwnerId, ReleaseRequest, Released, Watchdog,
};
use leasehold_sqlite::{SqliteBackend, SqliteConfig};

#[tokio::test]
async fn smoke() {
    let dir = tempfile::tempdir().expect("dir");
    let watchdog = Watchdog::start().expect("watchdog");
    let context = watchdog.context();
    let backend = SqliteBackend::connect(SqliteConfig::new(dir.path().join("a.db")), context.clone())
        .await
        .expect("connect");
    let name: LeaseName = "n".parse().expect("legal");
    let request = AcquireRequest::new(name.clone(), OwnerId::random(), Duration::from_secs(5), context.now());
    let Attempt::Granted(grant) = backend.acquire(&request).await.expect("acquire") else { panic!("held") };
    let rival = AcquireRequest::new(name.clone(), OwnerId::random(), Duration::from_secs(5), context.now());
    let Attempt::Held(seen) = backend.acquire(&rival).await.expect("acquire") else {
        panic!("granted twice")
    };
    println!("{seen:?}");
    let released =
        backend.release(&ReleaseRequest::new(grant.claim(), context.now())).await.expect("release");
    assert!(matches!(released, Released::Released), "{released:?}");
    println!("{:?}", backend.counters());
}
