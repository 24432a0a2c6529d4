//! What a server is started with.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::WallClock;
use crate::redis::{RedisServer, StartError};
#[cfg(feature = "tls")]
use crate::tls::{Identity, Pki};

/// What the server writes to its directory, and thus what a restart finds there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing: every restart starts empty.
    #[default]
    Off,
    /// Every write, before it is acknowledged (`appendfsync always`): a kill loses nothing that was
    /// acknowledged.
    AppendAlways,
    /// Every write, at once handed to the kernel and synced once a second (`appendfsync everysec`): a
    /// kill loses nothing, a power cut the last second.
    AppendEverySecond,
}

/// Whether a client of a TLS port has to show a certificate.
#[cfg(feature = "tls")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// It has to. One without is told so only when it first reads: with TLS 1.3 its handshake ends
    /// before the server has looked.
    Required,
    /// It may; one that it shows has to be good.
    Optional,
    /// It need not, and none is asked for.
    None,
}

/// How to start a [`RedisServer`]. Nothing but what is named here is set: the rest is as the server
/// comes, on 127.0.0.1, in an empty directory of its own, in memory only, and without a pause before
/// a replica is served.
#[derive(Clone)]
#[must_use = "options start nothing by themselves"]
pub struct RedisOptions {
    pub(super) program: PathBuf,
    pub(super) port: Option<u16>,
    pub(super) persistence: Persistence,
    password: Option<String>,
    users: Vec<User>,
    #[cfg(feature = "tls")]
    tls: Option<(Pki, Identity, ClientAuth)>,
    max_memory: Option<(u64, String)>,
    replica_of: Option<SocketAddr>,
    config: Vec<(String, String)>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) wall_clock: Option<Arc<WallClock>>,
}

/// A login besides the default one.
#[derive(Clone)]
struct User {
    name: String,
    password: String,
    rules: String,
}

/// The paths and names that only the server knows.
pub(super) struct Place<'a> {
    pub(super) port: u16,
    pub(super) data: &'a Path,
    pub(super) socket: &'a Path,
    pub(super) log: &'a Path,
    /// Name and password that the harness itself logs in with, where there is a login at all.
    pub(super) admin: &'a (String, String),
}

impl RedisOptions {
    /// A plain server: no login, no TLS, nothing kept.
    pub fn new() -> Self {
        RedisOptions {
            program: "redis-server".into(),
            port: None,
            persistence: Persistence::Off,
            password: None,
            users: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            max_memory: None,
            replica_of: None,
            config: Vec::new(),
            env: Vec::new(),
            wall_clock: None,
        }
    }

    /// Another executable than `redis-server`: another version, or Valkey.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// This very port, instead of one that is free. Starting fails when somebody is on it.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// What is written to disk.
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// The password of the default user (`requirepass`).
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// A user, with rules as `ACL SETUSER` has them: `~app:* &app:* +@read`. The default user is off then,
    /// unless [`RedisOptions::password`] or a user `default` is given too.
    pub fn user(
        mut self,
        name: impl Into<String>,
        password: impl Into<String>,
        rules: impl Into<String>,
    ) -> Self {
        self.users.push(User { name: name.into(), password: password.into(), rules: rules.into() });
        self
    }

    /// TLS instead of plain TCP, with a certificate of `pki`, whose first authority clients are checked
    /// against.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, pki: &Pki, identity: &Identity, clients: ClientAuth) -> Self {
        self.tls = Some((pki.clone(), identity.clone(), clients));
        self
    }

    /// `maxmemory` in bytes, and what happens beyond (`noeviction`, `allkeys-lru`, …).
    pub fn max_memory(mut self, bytes: u64, policy: impl Into<String>) -> Self {
        self.max_memory = Some((bytes, policy.into()));
        self
    }

    /// Follows another server. A primary with a login needs `masteruser` and `masterauth` by
    /// [`RedisOptions::config`].
    pub fn replica_of(mut self, primary: SocketAddr) -> Self {
        self.replica_of = Some(primary);
        self
    }

    /// One more line of the configuration file; the value is quoted here.
    pub fn config(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.push((name.into(), value.into()));
        self
    }

    /// A variable of the server's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs the server by this wall clock: [`WallClock::step_to`] then steps the time that its expiries
    /// and `TIME` follow, while it runs.
    pub fn wall_clock(mut self, clock: Arc<WallClock>) -> Self {
        self.wall_clock = Some(clock);
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<RedisServer, StartError> {
        RedisServer::start(self)
    }

    pub(super) fn speaks_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    pub(super) fn has_login(&self) -> bool {
        self.password.is_some() || !self.users.is_empty()
    }

    /// Writes the configuration file. Passwords stand in it and not on the command line, which every user
    /// of the machine can read.
    pub(super) fn write(&self, file: &Path, place: &Place<'_>) -> io::Result<()> {
        let mut text = String::from("bind 127.0.0.1\ndaemonize no\nsave \"\"\n");
        // A title is written over the environment, and with it over the mark that leftovers are found by.
        text.push_str("set-proc-title no\n");
        // Or a replica waits 5 s for others that might want the same.
        text.push_str("repl-diskless-sync-delay 0\n");
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} {}", quoted(value));
        };
        let path = |path: &Path| path.display().to_string();
        line("dir", &path(place.data));
        line("logfile", &path(place.log));
        line("unixsocket", &path(place.socket));
        line("unixsocketperm", "700");
        let port = place.port.to_string();
        if self.speaks_tls() {
            line("port", "0");
            line("tls-port", &port);
        } else {
            line("port", &port);
        }
        #[cfg(feature = "tls")]
        if let Some((pki, identity, clients)) = &self.tls {
            line("tls-cert-file", &path(&identity.cert));
            line("tls-key-file", &path(&identity.key));
            line("tls-ca-cert-file", &path(&pki.ca()));
            line("tls-auth-clients", clients.word());
        }
        match self.persistence {
            Persistence::Off => line("appendonly", "no"),
            Persistence::AppendAlways | Persistence::AppendEverySecond => {
                line("appendonly", "yes");
                let always = self.persistence == Persistence::AppendAlways;
                line("appendfsync", if always { "always" } else { "everysec" });
            }
        }
        if let Some((bytes, policy)) = &self.max_memory {
            line("maxmemory", &bytes.to_string());
            line("maxmemory-policy", policy);
        }
        for (name, value) in &self.config {
            line(name, value);
        }
        if let Some(password) = &self.password {
            line("requirepass", password);
        }
        if self.has_login() {
            self.write_users(&mut text, place.admin);
        }
        if let Some(primary) = self.replica_of {
            // Two words, which quotes would make one of.
            let _ = writeln!(text, "replicaof {} {}", primary.ip(), primary.port());
        }
        std::fs::write(file, text)
    }

    fn write_users(&self, text: &mut String, (admin, password): &(String, String)) {
        let mut user = |name: &str, password: &str, rules: &str| {
            let _ = writeln!(text, "user {name} on {} {rules}", quoted(&format!(">{password}")));
        };
        user(admin, password, "~* &* +@all");
        for User { name, password, rules } in &self.users {
            user(name, password, rules);
        }
        if self.password.is_none() && self.users.iter().all(|user| user.name != "default") {
            text.push_str("user default off\n");
        }
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("program", &self.program)
            .field("port", &self.port)
            .field("persistence", &self.persistence)
            .field("login", &self.has_login())
            .field("tls", &self.speaks_tls())
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tls")]
impl ClientAuth {
    fn word(self) -> &'static str {
        match self {
            ClientAuth::Required => "yes",
            ClientAuth::Optional => "optional",
            ClientAuth::None => "no",
        }
    }
}

/// A value as the configuration file takes it, whatever is in it.
fn quoted(value: &str) -> String {
    let mut text = String::from('"');
    for byte in value.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' => text.push(char::from(byte)),
            other => {
                let _ = write!(text, "\\x{other:02x}");
            }
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(options: &RedisOptions) -> String {
        let scratch = crate::Scratch::new();
        let file = scratch.join("redis.conf");
        let place = Place {
            port: 12345,
            data: Path::new("/data"),
            socket: Path::new("/socket"),
            log: Path::new("/log"),
            admin: &("harness".to_owned(), "key".to_owned()),
        };
        options.write(&file, &place).expect("own directory");
        scratch.read("redis.conf")
    }

    #[test]
    fn a_plain_server_is_private_and_keeps_nothing() {
        let text = written(&RedisOptions::new());
        for line in ["bind 127.0.0.1", "save \"\"", "appendonly \"no\"", "port \"12345\""] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert!(!text.contains("user ") && !text.contains("requirepass"), "{text}");
    }

    #[test]
    fn any_password_is_written_in_one_piece() {
        assert_eq!(quoted("p\"s\\ \n\u{fc}"), r#""p\"s\\ \x0a\xc3\xbc""#);
        let options = RedisOptions::new().user("app", "a b", "~app:* +@all");
        let text = written(&options);
        assert!(text.contains("user app on \">a b\" ~app:* +@all\n"), "{text}");
        assert!(text.contains("user default off\n") && text.contains("user harness on \">key\""), "{text}");
        let both = written(&options.password("x"));
        assert!(both.contains("requirepass \"x\"\n") && !both.contains("default off"), "{both}");
    }

    #[test]
    fn no_password_is_shown() {
        let options = RedisOptions::new().password("hidden").user("app", "hidden", "+@all");
        assert!(!format!("{options:?}").contains("hidden"));
    }
}
