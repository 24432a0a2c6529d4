//! The running server.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{EtcdOptions, StartError};
use crate::{Port, Proc, Scratch, listeners, listens};

/// A start takes a second; a machine whose processors are all busy needs its time.
const START_WITHIN: Duration = Duration::from_secs(30);
/// What was killed is gone at once.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether it is ready.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long one question of the harness may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How much of the log an error shows.
const LOG_LINES_SHOWN: usize = 12;

/// A server that was started for a test. Dropped, it is killed and its directory removed.
#[derive(Debug)]
pub struct EtcdServer {
    options: EtcdOptions,
    dir: Scratch,
    clients: Port,
    peers: Port,
    /// Where it tells about its health, always without TLS.
    health: Port,
    /// None while it is down.
    proc: Mutex<Option<Proc>>,
    /// How the harness gets in where authentication is enabled.
    login: Mutex<Option<String>>,
}

impl EtcdServer {
    /// A stock server.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn plain() -> Result<Self, StartError> {
        EtcdOptions::new().start()
    }

    pub(super) fn start(options: EtcdOptions) -> Result<Self, StartError> {
        let port = || Port::pick().map_err(StartError::NoPort);
        let server = EtcdServer {
            options,
            // In memory: the log is written through with each write, and 64 MB of it are made in advance.
            dir: Scratch::in_memory(),
            clients: port()?,
            peers: port()?,
            health: port()?,
            proc: Mutex::new(None),
            login: Mutex::new(None),
        };
        let proc = server.launch()?;
        *server.lock() = Some(proc);
        Ok(server)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Proc>> {
        self.proc.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch(&self) -> Result<Proc, StartError> {
        let program = &self.options.program;
        let failed = |source| StartError::Program { program: program.clone(), source };
        let log =
            File::options().create(true).append(true).open(self.dir.join("etcd.log")).map_err(failed)?;
        let again = log.try_clone().map_err(failed)?;
        let mut proc = Proc::spawn_tied(program, |command| {
            self.set_up(command);
            command.stdin(Stdio::null()).stdout(log).stderr(again);
        })
        .map_err(failed)?;
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = proc.try_wait() {
                return Err(StartError::Ended { status, log: self.last_words() });
            }
            match self.is_healthy() {
                Ok(()) => return self.prove_ours(proc.pid()).map(|()| proc),
                Err(e) if started.elapsed() >= START_WITHIN => {
                    let (waited, last) = (START_WITHIN, e.to_string());
                    return Err(StartError::NotReady { waited, last, log: self.last_words() });
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn set_up(&self, command: &mut Command) {
        let options = &self.options;
        let scheme = self.scheme();
        let clients = format!("{scheme}://{}", self.clients.addr());
        let peers = format!("http://{}", self.peers.addr());
        command
            .args([
                "--name",
                "n0",
                "--logger",
                "zap",
                "--log-level",
                "warn",
                "--initial-cluster-state",
                "new",
            ])
            .arg("--data-dir")
            .arg(self.dir.join("data"))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("n0={peers}")])
            .args(["--listen-metrics-urls", &format!("http://{}", self.health.addr())])
            .args(["--heartbeat-interval", &options.heartbeat.as_millis().to_string()])
            .args(["--election-timeout", &options.election.as_millis().to_string()])
            .args(&options.args);
        #[cfg(feature = "tls")]
        if let Some(tls) = &options.tls {
            command.arg("--cert-file").arg(&tls.server.cert).arg("--key-file").arg(&tls.server.key);
            if tls.wants_client {
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(tls.pki.ca());
            }
        }
    }

    fn scheme(&self) -> &'static str {
        #[cfg(feature = "tls")]
        if self.options.tls.is_some() {
            return "https";
        }
        "http"
    }

    /// Asks it for its health.
    fn is_healthy(&self) -> io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&self.health.addr(), ANSWER_WITHIN)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.contains("\"health\":\"true\"") {
            return Ok(());
        }
        Err(io::Error::other(answer.lines().last().unwrap_or("no answer").to_owned()))
    }

    fn prove_ours(&self, pid: i32) -> Result<(), StartError> {
        for port in [self.clients.number(), self.health.number()] {
            if !listens(pid, port) {
                let found = format!("processes {:?}", listeners(port));
                return Err(StartError::NotOurs { port, pid, found });
            }
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.dir.read("etcd.log")
    }

    /// The address that it listens on for clients. It stays the same over restarts.
    pub fn addr(&self) -> SocketAddr {
        self.clients.addr()
    }

    /// Its process; none while it is down.
    pub fn pid(&self) -> Option<i32> {
        self.lock().as_ref().map(Proc::pid)
    }

    /// Asks it as an operator, by `etcdctl`; returns what that prints.
    ///
    /// # Errors
    /// What it says when it fails, and that it is not installed.
    pub fn ctl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> io::Result<String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--command-timeout=5s").arg(format!(
            "--endpoints={}://{}",
            self.scheme(),
            self.addr()
        ));
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.options.tls {
            let client = tls.pki.client();
            command.arg("--cacert").arg(tls.pki.ca());
            command.arg("--cert").arg(client.cert).arg("--key").arg(client.key);
        }
        if let Some(login) = &*self.login.lock().unwrap_or_else(PoisonError::into_inner) {
            command.arg("--user").arg(login);
        }
        let output = command.args(args).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// As [`EtcdServer::ctl`], of what has to work.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn must<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        match self.ctl(args) {
            Ok(said) => said,
            Err(e) => panic!("etcdctl: {e}"),
        }
    }

    /// Adds a user who may read and write what begins with `prefix`.
    ///
    /// # Panics
    /// When it does not work.
    #[track_caller]
    pub fn add_user(&self, user: &str, password: &str, prefix: &str) {
        self.must(["user", "add", user, "--new-user-password", password]);
        self.must(["role", "add", user]);
        self.must(["role", "grant-permission", user, "--prefix=true", "readwrite", prefix]);
        self.must(["user", "grant-role", user, user]);
    }

    /// Enables authentication: whoever comes needs a login then. The harness's own is another.
    ///
    /// # Panics
    /// When it does not work.
    #[track_caller]
    pub fn enable_auth(&self) {
        const PASSWORD: &str = "testkit-harness";
        self.must(["user", "add", "root", "--new-user-password", PASSWORD]);
        self.must(["user", "grant-role", "root", "root"]);
        self.must(["auth", "enable"]);
        *self.login.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("root:{PASSWORD}"));
    }

    /// Stops it where it stands (SIGSTOP).
    ///
    /// # Panics
    /// When it is down.
    #[track_caller]
    pub fn freeze(&self) {
        assert!(self.lock().as_ref().is_some_and(Proc::freeze), "a server that is down cannot be frozen");
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Panics
    /// When it is down.
    #[track_caller]
    pub fn thaw(&self) {
        assert!(self.lock().as_ref().is_some_and(Proc::thaw), "a server that is down cannot be thawed");
    }

    /// Ends it at once (SIGKILL), and reaps it. Nothing happens when it is down already.
    ///
    /// # Panics
    /// When it is still there after 10 s.
    #[track_caller]
    pub fn kill(&self) {
        if let Some(mut proc) = self.lock().take() {
            proc.kill();
            proc.wait(SETTLE_WITHIN, "it was killed");
        }
    }

    /// Starts it anew on the same ports with its data; one that runs is killed first.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Panics
    /// As [`EtcdServer::kill`].
    #[track_caller]
    pub fn restart(&self) -> Result<(), StartError> {
        self.kill();
        let proc = self.launch()?;
        *self.lock() = Some(proc);
        Ok(())
    }

    /// Copies what it holds now; for [`EtcdServer::restart_from_copy`].
    ///
    /// # Panics
    /// When it does not work.
    #[track_caller]
    pub fn copy(&self) {
        let _ = fs::remove_file(self.dir.join("copy"));
        self.must([OsStr::new("snapshot"), OsStr::new("save"), self.dir.join("copy").as_os_str()]);
    }

    /// As [`EtcdServer::restart`], with what it held when it was last copied: later writes are forgotten.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Panics
    /// When the copy cannot be restored.
    #[track_caller]
    pub fn restart_from_copy(&self) -> Result<(), StartError> {
        self.kill();
        let program = self.options.program.clone();
        fs::remove_dir_all(self.dir.join("data"))
            .map_err(|source| StartError::Program { program, source })?;
        let peers = format!("http://{}", self.peers.addr());
        let cluster = format!("n0={peers}");
        let (copy, data) = (self.dir.join("copy"), self.dir.join("data"));
        self.must([
            OsStr::new("snapshot"),
            OsStr::new("restore"),
            copy.as_os_str(),
            OsStr::new("--data-dir"),
            data.as_os_str(),
            OsStr::new("--name=n0"),
            OsStr::new("--initial-cluster"),
            OsStr::new(&cluster),
            OsStr::new("--initial-advertise-peer-urls"),
            OsStr::new(&peers),
        ]);
        self.restart()
    }

    /// As [`EtcdServer::restart`], on an empty directory: it has forgotten everything.
    ///
    /// # Errors
    /// See [`StartError`].
    ///
    /// # Panics
    /// As [`EtcdServer::kill`].
    #[track_caller]
    pub fn restart_empty(&self) -> Result<(), StartError> {
        self.kill();
        let program = self.options.program.clone();
        fs::remove_dir_all(self.dir.join("data"))
            .map_err(|source| StartError::Program { program, source })?;
        self.restart()
    }
}
