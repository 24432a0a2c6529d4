//! What the tests of this folder share: a server of its own for each test, and the calls that all make.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test binary uses a part of it

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leasehold_core::{
    AcquireRequest, Attempt, BackendError, BootTime, Contention, Grant, LeaseBackend, LeaseName, OwnerId,
    ReleaseRequest, Released, RenewAnswer, Renewal, Watchdog,
};
use leasehold_etcd::{Endpoint, EtcdBackend, EtcdConfig};
use leasehold_testkit::etcd::{EtcdOptions, EtcdServer};
use leasehold_testkit::proxy::{Framing, Proxy};

pub const TTL: Duration = Duration::from_secs(30);
/// The shortest that a stock server gives.
pub const SHORT: Duration = Duration::from_secs(2);

/// A server, and a backend that reaches it through a proxy.
pub struct Fixture {
    pub backend: EtcdBackend,
    pub watchdog: Watchdog,
    pub proxy: Proxy,
    pub server: EtcdServer,
}

impl Fixture {
    pub async fn new() -> Self {
        Self::with(EtcdOptions::new(), |_| {}).await
    }

    pub async fn with(options: EtcdOptions, change: impl FnOnce(&mut EtcdConfig)) -> Self {
        let server = options.start().expect("apt-get install etcd-server etcd-client");
        let proxy = Proxy::start(server.addr(), Framing::Reads).expect("a proxy");
        let watchdog = Watchdog::start().expect("a watchdog");
        let mut config = config(proxy.addr());
        change(&mut config);
        let backend = EtcdBackend::connect(config, watchdog.context()).await.expect("connect");
        Fixture { backend, watchdog, proxy, server }
    }

    /// Another client, straight to the server.
    pub async fn rival(&self) -> EtcdBackend {
        EtcdBackend::connect(config(self.server.addr()), self.watchdog.context()).await.expect("connect")
    }

    /// Whether a key is there, as an operator sees it.
    pub fn has(&self, key: &str) -> bool {
        !self.server.must(["get", "--keys-only", key]).trim().is_empty()
    }

    /// All keys but that of the tokens.
    pub fn keys(&self) -> Vec<String> {
        let keys = self.server.must(["get", "--keys-only", "--prefix", ""]);
        keys.lines().filter(|line| !line.is_empty() && *line != "leasehold/meta").map(str::to_owned).collect()
    }

    /// The ids of all etcd leases.
    pub fn leases(&self) -> Vec<String> {
        self.server.must(["lease", "list"]).lines().skip(1).map(str::to_owned).collect()
    }
}

pub fn config(addr: SocketAddr) -> EtcdConfig {
    EtcdConfig::new([Endpoint { host: addr.ip().to_string(), port: addr.port() }])
}

/// The key of a name's lease.
pub fn key(text: &str) -> String {
    format!("leasehold/lease/{text}")
}

pub fn name(text: &str) -> LeaseName {
    text.parse().expect("a legal name")
}

pub fn now() -> BootTime {
    leasehold_core::Clock::now(&leasehold_core::SystemClock)
}

pub fn request(text: &str, ttl: Duration) -> AcquireRequest {
    AcquireRequest::new(name(text), OwnerId::random(), ttl, now())
}

pub async fn try_attempt(backend: &EtcdBackend, request: &AcquireRequest) -> Result<Attempt, BackendError> {
    let mut request = request.clone();
    request.sent_at = now();
    backend.acquire(&request).await
}

pub async fn granted(backend: &EtcdBackend, request: &AcquireRequest) -> Grant {
    match try_attempt(backend, request).await.expect("acquire answers") {
        Attempt::Granted(grant) => grant,
        Attempt::Held(seen) => panic!("{:?} is held: {seen:?}", request.name),
    }
}

pub async fn grant(backend: &EtcdBackend, text: &str, ttl: Duration) -> Grant {
    granted(backend, &request(text, ttl)).await
}

pub async fn refusal(backend: &EtcdBackend, text: &str, ttl: Duration) -> Contention {
    match try_attempt(backend, &request(text, ttl)).await.expect("acquire answers") {
        Attempt::Held(seen) => seen,
        Attempt::Granted(grant) => panic!("{text} was granted twice: {grant:?}"),
    }
}

pub async fn release(backend: &EtcdBackend, grant: &Grant) -> Released {
    backend.release(&ReleaseRequest::new(grant.claim(), now())).await.expect("release answers")
}

pub async fn try_renew(backend: &EtcdBackend, grant: &Grant) -> Result<RenewAnswer, BackendError> {
    let mut answers = backend.renew(&[Renewal::new(grant.claim(), grant.ttl, now())]).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

pub async fn renew(backend: &EtcdBackend, grant: &Grant) -> RenewAnswer {
    try_renew(backend, grant).await.expect("renew answers")
}

/// The anchor of a renewal.
pub fn anchor(answer: &RenewAnswer) -> BootTime {
    match answer {
        RenewAnswer::Renewed { anchor, .. } => *anchor,
        other => panic!("not renewed: {other:?}"),
    }
}

/// Asks again and again until it is so. The bound is far above what is expected, for slow machines; the time it took
/// is returned.
pub async fn until<T>(
    what: &str,
    bound: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> (T, Duration) {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return (found, started.elapsed());
        }
        assert!(started.elapsed() < bound, "{what}: not within {bound:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
