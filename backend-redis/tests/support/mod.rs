//! What the tests of this folder share: a server of its own for each test, and the calls that all make.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test binary uses a part of it

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leasehold_core::{
    AcquireRequest, Attempt, BackendError, Contention, Grant, LeaseBackend, LeaseName, OwnerId,
    ReleaseRequest, Released, RenewAnswer, Renewal, Token, Watchdog,
};
use leasehold_redis::{Address, RedisBackend, RedisConfig};
use leasehold_testkit::proxy::{Framing, Proxy};
use leasehold_testkit::redis::{RedisOptions, RedisServer};

pub const TTL: Duration = Duration::from_secs(30);

/// A server, and a backend that reaches it through a proxy.
pub struct Fixture {
    pub backend: RedisBackend,
    pub watchdog: Watchdog,
    pub proxy: Proxy,
    pub server: RedisServer,
}

impl Fixture {
    pub async fn new() -> Self {
        Self::with(RedisOptions::new(), |_| {}).await
    }

    /// With other options of the server, and another configuration.
    pub async fn with(options: RedisOptions, change: impl FnOnce(&mut RedisConfig)) -> Self {
        let server = options.start().expect("apt-get install redis-server");
        let proxy = Proxy::start(server.addr(), Framing::Resp).expect("a proxy");
        let watchdog = Watchdog::start().expect("a watchdog");
        let mut config = config(proxy.addr());
        change(&mut config);
        let backend = RedisBackend::connect(config, watchdog.context()).await.expect("connect");
        Fixture { backend, watchdog, proxy, server }
    }

    /// Another client, straight to the server.
    pub async fn rival(&self) -> RedisBackend {
        RedisBackend::connect(config(self.server.addr()), self.watchdog.context()).await.expect("connect")
    }

    /// The value of a key, as a person sees it.
    pub fn value(&self, key: &str) -> Option<String> {
        self.server.must(["GET", key]).text()
    }

    /// How long a key lives, in ms.
    pub fn pttl(&self, key: &str) -> i64 {
        self.server.must(["PTTL", key]).integer().expect("a number")
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> =
            self.server.must(["KEYS", "*"]).items().iter().filter_map(|k| k.text()).collect();
        keys.sort();
        keys
    }
}

pub fn config(addr: SocketAddr) -> RedisConfig {
    RedisConfig::new(Address::Tcp { host: addr.ip().to_string(), port: addr.port() })
}

/// The key of a plain name.
pub fn key(text: &str, what: char) -> String {
    format!("lh:default:{{{text}}}:{what}")
}

pub fn name(text: &str) -> LeaseName {
    text.parse().expect("a legal name")
}

pub fn now() -> leasehold_core::BootTime {
    leasehold_core::Clock::now(&leasehold_core::SystemClock)
}

pub fn request(text: &str, ttl: Duration) -> AcquireRequest {
    AcquireRequest::new(name(text), OwnerId::random(), ttl, now())
}

pub async fn try_attempt(backend: &RedisBackend, request: &AcquireRequest) -> Result<Attempt, BackendError> {
    let mut request = request.clone();
    request.sent_at = now();
    backend.acquire(&request).await
}

pub async fn attempt(backend: &RedisBackend, request: &AcquireRequest) -> Attempt {
    try_attempt(backend, request).await.expect("acquire answers")
}

pub async fn granted(backend: &RedisBackend, request: &AcquireRequest) -> Grant {
    match attempt(backend, request).await {
        Attempt::Granted(grant) => grant,
        Attempt::Held(seen) => panic!("{:?} is held: {seen:?}", request.name),
    }
}

pub async fn grant(backend: &RedisBackend, text: &str, ttl: Duration) -> Grant {
    granted(backend, &request(text, ttl)).await
}

pub async fn refusal(backend: &RedisBackend, text: &str, ttl: Duration) -> Contention {
    match attempt(backend, &request(text, ttl)).await {
        Attempt::Held(seen) => seen,
        Attempt::Granted(grant) => panic!("{text} was granted twice: {grant:?}"),
    }
}

pub async fn release(backend: &RedisBackend, grant: &Grant) -> Released {
    backend.release(&ReleaseRequest::new(grant.claim(), now())).await.expect("release answers")
}

pub async fn try_renew(backend: &RedisBackend, grant: &Grant) -> Result<RenewAnswer, BackendError> {
    let renewal = Renewal::new(grant.claim(), grant.ttl, now());
    let mut answers = backend.renew(&[renewal]).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

pub async fn renew(backend: &RedisBackend, grant: &Grant) -> RenewAnswer {
    try_renew(backend, grant).await.expect("renew answers")
}

pub fn token(n: u64) -> Token {
    Token::new(n).expect("a legal token")
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
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
