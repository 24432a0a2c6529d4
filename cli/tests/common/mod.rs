//! What the tests of the program share: a store of their own, the program on it, and clocks.

#![allow(dead_code, unreachable_pub)] // a module of every test file, each of which uses a part of it

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use leasehold_testkit::{Proc, Process, Scratch, boot_now, eventually};
use sqlx::Connection;

/// For things that take milliseconds on an idle machine and must not fail on one that is busy.
pub const SOON: Duration = Duration::from_secs(20);

/// A directory, a SQLite store in it, and the program.
pub struct Bench {
    pub scratch: Scratch,
}

/// What one run of the program gave.
#[derive(Debug)]
pub struct Ran {
    /// As a shell sees it: 128+N for a signal.
    pub code: i32,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let signal = output.status.signal();
        Ran {
            code: output.status.code().unwrap_or_else(|| 128 + signal.unwrap_or(0)),
            signal,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Bench {
    pub fn new() -> Self {
        Bench { scratch: Scratch::new() }
    }

    pub fn url(&self) -> String {
        format!("sqlite://{}", self.path("leases.db"))
    }

    /// A path in the directory, as text.
    pub fn path(&self, name: &str) -> String {
        self.scratch.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// The program in surroundings of its own, on the bench's store.
    pub fn program(&self) -> Command {
        let mut command = self.program_without_store();
        command.env("LEASEHOLD_STORE", self.url());
        command
    }

    /// The same, with no store chosen.
    pub fn program_without_store(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path("home"))
            .env("USER", "tester")
            .current_dir(self.scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end, and shows that nothing of it is left.
    #[track_caller]
    pub fn ran(&self, args: &[&str]) -> Ran {
        finish(self.program().args(args))
    }

    /// Starts `leasehold run ARGS`.
    #[track_caller]
    pub fn start(&self, args: &[&str]) -> Proc {
        Proc::spawn(self.program().arg("run").args(args)).expect("the program starts")
    }

    /// Waits for a file that a job writes, and returns what is in it.
    #[track_caller]
    pub fn written(&self, name: &str) -> String {
        eventually(SOON, &format!("the job writes {name}; it needs milliseconds"), || {
            let text = std::fs::read_to_string(self.scratch.join(name)).ok()?;
            (text.ends_with('\n')).then(|| text.trim().to_owned())
        })
    }

    /// Whether the file is there.
    pub fn exists(&self, name: &str) -> bool {
        self.scratch.join(name).exists()
    }

    /// Whether the name can be had at once.
    #[track_caller]
    pub fn assert_free(&self, name: &str) {
        let ran = self.ran(&["run", "-n", name, "--", "true"]);
        assert_eq!(ran.code, 0, "{name} is still taken: {}", ran.stderr);
    }

    /// The boot-clock time at which the store lets `name` go unless it is renewed.
    #[track_caller]
    pub fn store_deadline(&self, name: &str) -> Duration {
        let asked = boot_now();
        let ran = self.ran(&["inspect", name, "-o", "json"]);
        let free_in = field(&ran.stdout, "free_in_ms").unwrap_or_else(|| panic!("{name} is held: {ran:?}"));
        // The store counted from a moment after `asked`: this is its deadline, or a little before.
        asked + Duration::from_millis(free_in.parse().expect("a number"))
    }

    /// The token of the holder.
    #[track_caller]
    pub fn token(&self, name: &str) -> String {
        let ran = self.ran(&["inspect", name, "-o", "json"]);
        field(&ran.stdout, "token").unwrap_or_else(|| panic!("{name} is held: {ran:?}"))
    }

    /// Ends the grant of whoever holds `name`.
    #[track_caller]
    pub fn force_release(&self, name: &str) {
        let token = self.token(name);
        let ran = self.ran(&["force-release", name, "--token", &token, "--reason", "test"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }

    /// Changes the store's tables behind leasehold's back.
    pub fn alter(&self, sql: &'static str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let file = self.scratch.join("leases.db");
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(SOON);
            let mut connection =
                sqlx::SqliteConnection::connect_with(&options).await.expect("the store opens");
            sqlx::query(sql).execute(&mut connection).await.expect("altered");
            connection.close().await.expect("closed");
        });
    }

    /// Locks the store for writers until the value is dropped.
    pub fn lock_store(&self) -> StoreLock {
        StoreLock::take(&self.scratch.join("leases.db"))
    }
}

/// A write lock on the store's file, held by this process.
pub struct StoreLock {
    runtime: tokio::runtime::Runtime,
    connection: Option<sqlx::SqliteConnection>,
}

impl StoreLock {
    fn take(file: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connection = runtime.block_on(async {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(SOON);
            let mut connection =
                sqlx::SqliteConnection::connect_with(&options).await.expect("the store opens");
            sqlx::query("BEGIN EXCLUSIVE").execute(&mut connection).await.expect("the lock");
            connection
        });
        StoreLock { runtime, connection: Some(connection) }
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let _ = self.runtime.block_on(connection.close());
        }
    }
}

/// Runs a command to its end; nothing of it may be left then.
#[track_caller]
pub fn finish(command: &mut Command) -> Ran {
    let proc = Proc::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped())).expect("it starts");
    finish_started(proc)
}

/// As [`finish`], for a program that was started.
#[track_caller]
pub fn finish_started(mut proc: Proc) -> Ran {
    // Read beside the wait: a full pipe would hold the program.
    let stdout = reader(proc.child_mut().stdout.take());
    let stderr = reader(proc.child_mut().stderr.take());
    let status = proc.wait(Duration::from_secs(60), "no test runs a command longer");
    let left = proc.living();
    let text = |thread: std::thread::JoinHandle<Vec<u8>>| thread.join().expect("a reader");
    let output = Output { status, stdout: text(stdout), stderr: text(stderr) };
    let ran = Ran::from(output);
    assert!(left.is_empty(), "left behind: {left:?}, {ran:?}");
    ran
}

fn reader(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// The value of the first `"name": value` in a JSON text.
pub fn field(json: &str, name: &str) -> Option<String> {
    let rest = &json[json.find(&format!("\"{name}\":"))? + name.len() + 3..];
    let value = rest.trim_start().split([',', '\n', '}']).next()?.trim().trim_matches('"');
    (value != "null").then(|| value.to_owned())
}

/// Seconds since boot, as `/proc/uptime` writes them with two digits, suspend included.
pub fn uptime(text: &str) -> Duration {
    Duration::from_secs_f64(text.split_whitespace().next().expect("a number").parse().expect("a number"))
}

/// The guardian below a running wrapper.
#[track_caller]
pub fn guardian_of(proc: &Proc) -> Process {
    let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_leasehold")).expect("the program");
    eventually(SOON, "the guardian is started in milliseconds", || {
        proc.living()
            .into_iter()
            .filter(|stat| stat.pid != proc.pid())
            .filter_map(|stat| Process::open_same(&stat).ok())
            .find(|process| process.executable().is_some_and(|exe| exe == program))
    })
}
