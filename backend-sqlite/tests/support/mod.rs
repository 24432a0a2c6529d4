//! What the tests of this folder share.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test binary uses a part of it

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, Contention, Grant, LeaseBackend, LeaseName, OwnerId,
    ReleaseRequest, Released, RenewAnswer, Renewal, Token, Watchdog,
};
use leasehold_sqlite::{SqliteBackend, SqliteConfig};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqliteConnection};

pub const TTL: Duration = Duration::from_secs(30);

/// A store in a directory of its own.
pub struct Fixture {
    pub dir: tempfile::TempDir,
    pub watchdog: Watchdog,
    pub backend: SqliteBackend,
}

impl Fixture {
    /// In memory: what these tests are about is not the speed of the disk.
    pub async fn new() -> Self {
        Self::at(std::path::Path::new("/dev/shm")).await
    }

    /// On the disk of the temporary directory.
    pub async fn on_disk() -> Self {
        Self::at(&std::env::temp_dir()).await
    }

    async fn at(above: &std::path::Path) -> Self {
        let dir = tempfile::tempdir_in(above).expect("a directory");
        let watchdog = Watchdog::start().expect("watchdog");
        let backend = connect(dir.path().join("leases.db"), &watchdog).await;
        Fixture { dir, watchdog, backend }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("leases.db")
    }

    pub fn context(&self) -> BackendContext {
        self.watchdog.context()
    }

    /// Another backend on the same file, as another process would have.
    pub async fn rival(&self) -> SqliteBackend {
        connect(self.path(), &self.watchdog).await
    }

    /// Another backend on the same file, in a container whose clock id differs.
    pub async fn foreigner(&self, clock_id: &str) -> SqliteBackend {
        let config = SqliteConfig::new(self.path());
        SqliteBackend::connect_with_clock_id(config, self.context(), clock_id.to_owned())
            .await
            .expect("connect")
    }

    /// A connection beside leasehold's, as a person with the sqlite3 program has.
    pub async fn raw(&self) -> SqliteConnection {
        raw(self.path()).await
    }
}

pub async fn connect(path: PathBuf, watchdog: &Watchdog) -> SqliteBackend {
    SqliteBackend::connect(SqliteConfig::new(path), watchdog.context()).await.expect("connect")
}

pub async fn raw(path: PathBuf) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(Duration::from_secs(10))
        .disable_statement_logging()
        .connect()
        .await
        .expect("raw connection")
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

pub async fn attempt(backend: &SqliteBackend, request: &AcquireRequest) -> Attempt {
    let mut request = request.clone();
    request.sent_at = now();
    backend.acquire(&request).await.expect("acquire answers")
}

pub async fn grant(backend: &SqliteBackend, text: &str, ttl: Duration) -> Grant {
    match attempt(backend, &request(text, ttl)).await {
        Attempt::Granted(grant) => grant,
        Attempt::Held(seen) => panic!("{text} is held: {seen:?}"),
    }
}

pub async fn refusal(backend: &SqliteBackend, text: &str, ttl: Duration) -> Contention {
    match attempt(backend, &request(text, ttl)).await {
        Attempt::Held(seen) => seen,
        Attempt::Granted(grant) => panic!("{text} was granted twice: {grant:?}"),
    }
}

pub async fn release(backend: &SqliteBackend, grant: &Grant) -> Released {
    backend.release(&ReleaseRequest::new(grant.claim(), now())).await.expect("release answers")
}

pub async fn renew(backend: &SqliteBackend, grant: &Grant) -> RenewAnswer {
    let renewal = Renewal::new(grant.claim(), grant.ttl, now());
    let mut answers = backend.renew(&[renewal]).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0).expect("renew answers")
}

pub fn token(n: u64) -> Token {
    Token::new(n).expect("a legal token")
}

/// Asks again and again until it is so. The bound is far above what is expected, for slow machines; the time
/// it took is returned.
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

/// Which part a process that was started by [`in_role`] has to play.
pub const ROLE: &str = "LEASEHOLD_TEST_ROLE";
pub const FILE: &str = "LEASEHOLD_TEST_FILE";

/// This test program again, running only its ignored test `child`, in a role.
pub fn in_role(role: &str, file: &std::path::Path) -> Command {
    let exe = std::env::current_exe().expect("this program");
    let mut command = Command::new(exe);
    command
        .args(["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(FILE, file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// Kills what a failing test left running.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
