//! The running server.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::process::Signal;

use super::info::parse_info;
use super::options::Place;
use super::{Connection, Persistence, RedisOptions, Reply, StartError};
use crate::tree::states_of_threads;
use crate::{Port, Proc, Process, Scratch, children_of, eventually, listeners, listens};

/// A start takes 20 ms; a machine whose processors are all busy needs its time.
pub(super) const START_WITHIN: Duration = Duration::from_secs(20);
/// As long for what needs one turn of the scheduler.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// Ports lost in a row to somebody else before giving up.
const PORT_TRIES_MAX: u32 = 10;
/// Between two looks whether it is ready.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How much of the log an error shows.
const LOG_LINES_SHOWN: usize = 12;

/// What a restarted server finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// What its persistence had written by then.
    Data,
    /// An empty directory: the server has forgotten everything.
    Nothing,
}

/// A server that was started for a test. Dropped, it is killed and its directory removed.
#[derive(Debug)]
pub struct RedisServer {
    options: RedisOptions,
    dir: Scratch,
    port: Port,
    admin: Admin,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// None while it is down.
    proc: Option<Proc>,
    run_id: String,
}

/// How the harness gets in.
struct Admin {
    socket: PathBuf,
    login: Option<(String, String)>,
}

impl RedisServer {
    /// As [`RedisOptions::new`] and [`RedisOptions::start`]: a plain server.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn plain() -> Result<Self, StartError> {
        RedisOptions::new().start()
    }

    pub(super) fn start(options: RedisOptions) -> Result<Self, StartError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let port = options.port.map_or_else(Port::pick, Port::exactly).map_err(StartError::NoPort)?;
            let server = Self::prepare(options.clone(), port)?;
            match server.launch() {
                Ok(state) => {
                    *server.lock() = state;
                    return Ok(server);
                }
                // Somebody was faster: not our port, then, and nothing else is wrong.
                Err(StartError::Ended { log, .. })
                    if options.port.is_none()
                        && tries < PORT_TRIES_MAX
                        && log.contains("Address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn prepare(options: RedisOptions, port: Port) -> Result<Self, StartError> {
        // In memory: a process that waits for a disk can neither be frozen nor killed meanwhile.
        let dir = Scratch::in_memory();
        let failed = |source| StartError::Program { program: options.program.clone(), source };
        let key = getrandom::u64().map_err(|e| failed(io::Error::other(e)))?;
        let login = ("testkit-harness".to_owned(), format!("{key:016x}"));
        let admin = Admin { socket: dir.join("admin.sock"), login: options.has_login().then_some(login) };
        let state = Mutex::new(State { proc: None, run_id: String::new() });
        Ok(RedisServer { options, dir, port, admin, state })
    }

    /// Starts the process on a port that was just seen to be free, and waits until it is ready and known
    /// to be ours.
    fn launch(&self) -> Result<State, StartError> {
        let program = &self.options.program;
        let failed = |source| StartError::Program { program: program.clone(), source };
        fs::create_dir_all(self.data()).map_err(failed)?;
        let config = self.dir.join("redis.conf");
        let nobody = (String::new(), String::new());
        let place = Place {
            port: self.port.number(),
            data: &self.data(),
            socket: &self.admin.socket,
            log: &self.dir.join("redis.log"),
            admin: self.admin.login.as_ref().unwrap_or(&nobody),
        };
        self.options.write(&config, &place).map_err(failed)?;
        let mut proc = Proc::spawn_tied(program, |command| {
            command.arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.envs(self.options.env.iter().map(|(name, value)| (name, value)));
            if let Some(clock) = &self.options.wall_clock {
                clock.apply(command);
            }
        })
        .map_err(failed)?;
        let run_id = self.wait_ready(&mut proc)?;
        Ok(State { proc: Some(proc), run_id })
    }

    fn wait_ready(&self, proc: &mut Proc) -> Result<String, StartError> {
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = proc.try_wait() {
                return Err(StartError::Ended { status, log: self.last_words() });
            }
            match self.look(proc.pid()) {
                Ok(run_id) => return self.prove_ours(proc.pid(), &run_id).map(|()| run_id),
                Err(e) if started.elapsed() >= START_WITHIN => {
                    let (waited, last) = (START_WITHIN, e.to_string());
                    return Err(StartError::NotReady { waited, last, log: self.last_words() });
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Asks by the socket in the own directory; an error as long as it is not ready.
    fn look(&self, pid: i32) -> io::Result<String> {
        let mut connection = self.admin.connect()?;
        // A server that still loads refuses this one.
        connection.command(["PING"])?.accepted()?;
        let info = parse_info(&connection.command(["INFO", "server"])?.accepted()?);
        let said = |name: &str| info.get(name).cloned().unwrap_or_default();
        if said("process_id") != pid.to_string() {
            return Err(io::Error::other(format!(
                "the socket is answered by process {}",
                said("process_id")
            )));
        }
        Ok(said("run_id"))
    }

    /// That the port leads to the very process that was started.
    fn prove_ours(&self, pid: i32, run_id: &str) -> Result<(), StartError> {
        let port = self.port.number();
        let not_ours = |found: String| StartError::NotOurs { port, pid, found };
        if !listens(pid, port) {
            return Err(not_ours(format!("processes {:?}", listeners(port))));
        }
        if self.options.speaks_tls() {
            return Ok(());
        }
        let asked = Connection::tcp(self.addr()).and_then(|mut connection| {
            self.admin.login(&mut connection)?;
            Ok(parse_info(&connection.command(["INFO", "server"])?.accepted()?))
        });
        match asked {
            Ok(info) if info.get("run_id").is_some_and(|id| id == run_id) => Ok(()),
            Ok(info) => Err(not_ours(format!("process {:?}", info.get("process_id")))),
            Err(e) => Err(not_ours(format!("nobody who is Redis ({e})"))),
        }
    }

    /// The address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The port that it listens on, by TCP or by TLS. It stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `redis://127.0.0.1:PORT`, or `rediss:` for TLS, without a login.
    pub fn url(&self) -> String {
        self.url_at(self.addr(), None)
    }

    /// The URL with a login, percent-encoded; an empty user is the default one.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url_at(self.addr(), Some((user, password)))
    }

    /// The URL of another address that leads here, such as a proxy's.
    pub fn url_at(&self, addr: SocketAddr, login: Option<(&str, &str)>) -> String {
        let scheme = if self.options.speaks_tls() { "rediss" } else { "redis" };
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let login =
            login.map_or_else(String::new, |(user, key)| format!("{}:{}@", encoded(user), encoded(key)));
        format!("{scheme}://{login}{addr}")
    }

    /// `redis+unix://` and the path of its socket in the file system, without a login.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.admin.socket.display())
    }

    /// A faultless proxy in front of it, which tells commands and answers apart where they can be read:
    /// without TLS.
    ///
    /// # Errors
    /// As [`Proxy::start`](crate::proxy::Proxy::start).
    #[cfg(feature = "proxy")]
    pub fn proxy(&self) -> io::Result<crate::proxy::Proxy> {
        use crate::proxy::{Framing, Proxy};
        let framing = if self.options.speaks_tls() { Framing::Reads } else { Framing::Resp };
        Proxy::start(self.addr(), framing)
    }

    /// Its socket in the file system, which every server has.
    pub fn socket(&self) -> &Path {
        &self.admin.socket
    }

    /// Its process; none while it is down.
    pub fn pid(&self) -> Option<i32> {
        self.lock().proc.as_ref().map(Proc::pid)
    }

    /// What it calls itself since its last start. A restarted server has another one.
    pub fn run_id(&self) -> String {
        self.lock().run_id.clone()
    }

    /// What it has logged so far, over all its starts.
    pub fn log(&self) -> String {
        self.dir.read("redis.log")
    }

    /// Stops it where it stands (SIGSTOP); returns once the kernel shows every thread stopped. The kernel
    /// goes on accepting connections for it, and nobody answers them.
    ///
    /// # Panics
    /// When it is down, or does not stop within 5 s.
    #[track_caller]
    pub fn freeze(&self) {
        let state = self.lock();
        assert!(state.proc.as_ref().is_some_and(Proc::freeze), "a server that is down cannot be frozen");
    }

    /// Lets it go on (SIGCONT); returns once it runs.
    ///
    /// # Panics
    /// When it is down, or still stands after 10 s.
    #[track_caller]
    pub fn thaw(&self) {
        let state = self.lock();
        let Some(proc) = state.proc.as_ref().filter(|p| p.thaw()) else {
            panic!("a server that is down cannot be thawed")
        };
        eventually(SETTLE_WITHIN, "a process goes on after SIGCONT", || {
            (!states_of_threads(proc.pid()).contains(&'T')).then_some(())
        });
    }

    /// Ends it and what it forked at once (SIGKILL), frozen or not, and reaps it: its connections are gone and its port is
    /// free when this returns. Nothing happens when it is down already.
    ///
    /// # Panics
    /// When it is still there after 10 s.
    #[track_caller]
    pub fn kill(&self) {
        if let Some(mut proc) = self.lock().proc.take() {
            kill_with_children(&proc);
            proc.wait(SETTLE_WITHIN, "it was killed");
        }
    }

    /// Has it end in order (SIGTERM), frozen or not, and reaps it.
    ///
    /// # Panics
    /// When it is still there after 10 s.
    #[track_caller]
    pub fn stop(&self) {
        if let Some(mut proc) = self.lock().proc.take() {
            proc.signal(Signal::TERM);
            proc.thaw();
            proc.wait(SETTLE_WITHIN, "it was asked to end");
        }
    }

    /// Starts it anew on the same port; one that runs is killed first.
    ///
    /// # Errors
    /// See [`StartError`]; [`StartError::KeepsNothing`] when data are to be kept that were never written
    /// (the server is left as it is then).
    ///
    /// # Panics
    /// As [`RedisServer::kill`].
    #[track_caller]
    pub fn restart(&self, keep: Keep) -> Result<(), StartError> {
        if keep == Keep::Data && self.options.persistence == Persistence::Off {
            return Err(StartError::KeepsNothing);
        }
        self.kill();
        // Before anything is thrown away.
        self.port.check_free().map_err(StartError::NoPort)?;
        if keep == Keep::Nothing {
            let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
            match fs::remove_dir_all(self.data()) {
                Err(source) if !gone(&source) => {
                    return Err(StartError::Program { program: self.options.program.clone(), source });
                }
                _ => {}
            }
        }
        let state = self.launch()?;
        *self.lock() = state;
        Ok(())
    }

    /// Asks it as the harness, by the socket in its directory. A refusal is an answer: see
    /// [`Reply::accepted`].
    ///
    /// # Errors
    /// When it is down or frozen (after 5 s; the command may be carried out when it is thawed).
    pub fn command<A: AsRef<[u8]>>(&self, args: impl IntoIterator<Item = A>) -> io::Result<Reply> {
        self.admin.connect()?.command(args)
    }

    /// As [`RedisServer::command`], where nothing may go wrong.
    ///
    /// # Panics
    /// When the server cannot be asked, or refuses.
    #[track_caller]
    pub fn must<A: AsRef<[u8]>>(&self, args: impl IntoIterator<Item = A>) -> Reply {
        match self.command(args).and_then(Reply::accepted) {
            Ok(reply) => reply,
            Err(e) => panic!("the server at {} did not do it: {e}", self.addr()),
        }
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(LOG_LINES_SHOWN)..).unwrap_or_default().join("\n")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked meanwhile has failed anyway; others may still want to stop the server.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kills the server and what it forked to write a snapshot or to rewrite its log. These would go on without
/// it, and they write a title over their environment, so that no mark leads to them.
fn kill_with_children(proc: &Proc) {
    // Who is stopped forks no more.
    proc.signal(Signal::STOP);
    let children: Vec<Process> =
        children_of(proc.pid()).iter().filter_map(|child| Process::open_same(child).ok()).collect();
    proc.kill();
    for child in children {
        child.kill();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // Before its directory goes. What is killed here is reaped when the process is dropped.
        if let Some(proc) = self.lock().proc.take() {
            kill_with_children(&proc);
        }
    }
}

impl Admin {
    fn connect(&self) -> io::Result<Connection> {
        let mut connection = Connection::unix(&self.socket)?;
        self.login(&mut connection)?;
        Ok(connection)
    }

    fn login(&self, connection: &mut Connection) -> io::Result<()> {
        if let Some((user, password)) = &self.login {
            connection.command(["AUTH", user, password])?.accepted()?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("socket", &self.socket).finish_non_exhaustive()
    }
}
