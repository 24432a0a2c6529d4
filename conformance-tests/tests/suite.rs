//! Goal: a run against a store that others use leaves theirs alone, removes its own, and ends.
//!
//! Method: one memory backend stands for the server; the run gets clients of it as a program would.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_conformance::{Case, Harness, Outcome, Store, Suite};
use leasehold_core::{
    Attempt, BackendContext, BackendError, Facets, FencedStore, HolderInfo, Inspection, LeaseAdmin,
    LeaseBackend, LeaseName, MemoryBackend, OwnerId, Page, Profile, ReleaseRequest, Released, RenewAnswer,
    Renewal, Token, Waiter, Watchdog, async_trait,
};

/// A server that is there before anybody runs a suite on it.
struct Server {
    memory: MemoryBackend,
    watchdog: Watchdog,
}

impl Server {
    fn start() -> Self {
        let watchdog = Watchdog::start().expect("threads");
        Server { memory: MemoryBackend::new(watchdog.context()), watchdog }
    }

    fn suite(&self) -> Suite {
        let memory = self.memory.clone();
        let harness = move || -> Box<dyn Harness> {
            let memory = memory.clone();
            let connect = move |context| {
                let client = memory.shared_with(context);
                async { Ok(client) }
            };
            Box::new(Store::new("server", connect).shared())
        };
        Suite::new(harness).expect("it is there")
    }

    /// Somebody's lease, and values behind their fence.
    async fn take(&self, name: &str) -> LeaseName {
        let name = LeaseName::new(name).expect("legal");
        let (owner, ttl) = (OwnerId::random(), Duration::from_secs(3_600));
        let now = self.watchdog.context().now();
        let mut request = leasehold_core::AcquireRequest::new(name.clone(), owner, ttl, now);
        request.holder_info = HolderInfo::new("theirs", [("k", "v")]).expect("legal");
        let granted = self.memory.acquire(&request).await.expect("answered");
        assert!(matches!(granted, Attempt::Granted(_)), "{granted:?}");
        let token = Token::new(77).expect("legal");
        self.memory.put(&name, "key", b"value", token).await.expect("written");
        name
    }

    /// What others can see of a name, but for the time that passes.
    async fn seen(&self, name: &LeaseName) -> String {
        let mut seen = self.memory.inspect(name).await.expect("answered");
        seen.holders.iter_mut().for_each(|holder| holder.remaining = None);
        let Inspection { holders, waiting, .. } = seen;
        let value = self.memory.get(name, "key").await.expect("answered");
        let keys = FencedStore::list(&self.memory, name, "").await.expect("answered");
        format!("{holders:?} {waiting:?} {value:?} {keys:?}")
    }

    async fn taken(&self, prefix: &str) -> Vec<LeaseName> {
        let page = Page::first();
        let taken = LeaseAdmin::list(&self.memory, prefix, &page).await.expect("answered");
        taken.into_iter().map(|seen| seen.name).collect()
    }
}

/// Runs what is chosen to its end; how many passed, were ignored, and what failed.
fn run(suite: &Suite, filter: &str) -> (usize, usize, Vec<(&'static str, String)>) {
    let (mut passed, mut ignored, mut failed) = (0, 0, Vec::new());
    let cases: Vec<&'static Case> = Suite::chosen(filter);
    suite.run(&cases, 8, &AtomicBool::new(false), |row| match row.outcome {
        Outcome::Passed => passed += 1,
        Outcome::Ignored(_) => ignored += 1,
        Outcome::Failed(why) => failed.push((row.case.name, why)),
    });
    (passed, ignored, failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn others_keep_what_they_have_and_nothing_of_the_run_is_left() {
    let server = Server::start();
    let mut theirs = Vec::new();
    for name in ["theirs", "conformance", "conformance-0123456789ab/fence/x"] {
        let name = server.take(name).await;
        let seen = server.seen(&name).await;
        theirs.push((name, seen));
    }
    let suite = server.suite();
    let (passed, ignored, failed) = run(&suite, "");
    assert_eq!(failed, [], "of {passed} passed and {ignored} ignored");
    assert!(passed > 90 && ignored > 5, "{passed} passed, {ignored} ignored");
    let prefix = format!("{}/", suite.prefix());
    let before = server.taken(&prefix).await;
    let cleaned = suite.clean_up(Duration::from_secs(20));
    assert_eq!(cleaned.left, Vec::<String>::new());
    // Also what had run out and lay there still.
    assert!(before.len() > 10 && cleaned.freed >= before.len(), "{before:?}, {cleaned:?}");
    assert!(cleaned.freed > 10 && cleaned.purged > 5 && cleaned.marks > cleaned.purged, "{cleaned:?}");
    assert_eq!(server.taken(&prefix).await, []);
    for (name, seen) in theirs {
        assert_eq!(server.seen(&name).await, seen);
    }
    // Names of theirs that look like ours are among those that were not touched.
    assert_eq!(server.taken("conformance").await.len(), 2);
}

#[test]
fn an_interruption_ends_the_run_soon_and_the_clean_up_still_knows_everything() {
    let server = Server::start();
    let suite = server.suite();
    let (stop, started) = (AtomicBool::new(false), Instant::now());
    let mut rows = 0;
    suite.run(&Suite::chosen("expiry/"), 2, &stop, |_| {
        rows += 1;
        stop.store(true, Ordering::Relaxed);
    });
    assert!(rows < Suite::chosen("expiry/").len(), "all {rows} cases were run");
    // Those under way have five seconds; the rest is a busy machine's.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    let cleaned = suite.clean_up(Duration::from_secs(20));
    assert_eq!(cleaned.left, Vec::<String>::new());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    assert_eq!(runtime.block_on(server.taken("conformance-")), []);
}

/// A store without operations for people whose releases hang.
#[derive(Debug)]
struct Hangs(MemoryBackend, Arc<Mutex<u32>>);

#[async_trait]
impl LeaseBackend for Hangs {
    fn profile(&self) -> &Profile {
        self.0.profile()
    }

    async fn acquire(&self, request: &leasehold_core::AcquireRequest) -> Result<Attempt, BackendError> {
        self.0.acquire(request).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        self.0.renew(renewals).await
    }

    async fn release(&self, _: &ReleaseRequest) -> Result<Released, BackendError> {
        *self.1.lock().expect("no panic under it") += 1;
        std::future::pending().await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        self.0.inspect(name).await
    }

    async fn waiter(
        &self,
        request: &leasehold_core::AcquireRequest,
    ) -> Result<Box<dyn Waiter>, BackendError> {
        self.0.waiter(request).await
    }

    fn facets(&self) -> Facets<'_> {
        Facets::default()
    }

    async fn close(&self) {}
}

#[test]
fn a_store_that_hangs_ends_with_the_cases_that_found_it() {
    let hung = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&hung);
    let harness = move || -> Box<dyn Harness> {
        let counted = Arc::clone(&counted);
        let connect = move |context: BackendContext| {
            let store = Hangs(MemoryBackend::new(context), Arc::clone(&counted));
            async { Ok(store) }
        };
        Box::new(Store::new("hangs", connect).shared())
    };
    let suite = Suite::new(harness).expect("it is there").limited_to(Duration::from_secs(1));
    let (_, _, failed) = run(&suite, "release/");
    assert!(failed.iter().any(|(_, why)| why.contains("stopped by force")), "{failed:?}");
    assert!(*hung.lock().expect("no panic under it") > 0, "nothing hung");
    let cleaned = suite.clean_up(Duration::from_secs(30));
    assert!(cleaned.left[0].starts_with("the store answers no release: "), "{cleaned:?}");
}
