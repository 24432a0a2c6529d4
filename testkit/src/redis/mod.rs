//! A real Redis server (or Valkey) for one test: private, known by its process, frozen and killed at will.
//!
//! 1. [`RedisOptions`] say how it is to run; [`RedisOptions::start`] reserves a [`Port`](crate::Port),
//!    looks that nobody answers on it, writes a configuration file into an empty directory, and starts the
//!    program so that it dies with the test process.
//! 2. It is ready when it answers on its own socket in that directory, says that it is the process that
//!    was started and has loaded its data, and when the kernel's tables show that very process listening
//!    on the port. Without TLS it is also asked through the port itself.
//! 3. [`RedisServer::freeze`], [`kill`](RedisServer::kill), [`restart`](RedisServer::restart) do to it
//!    what machines do. All calls are blocking and short, and need no runtime.
//! 4. [`RedisServer::command`] goes by the socket in the directory, as a user of its own where there are
//!    logins: it works whatever the test did to TLS, users and network, and passes no proxy.
//! 5. Dropped, the server is killed by its own pid, reaped, and its directory removed.
//!
//! What can go wrong, and where it is handled:
//! * Another server sits on the port: [`StartError::NoPort`], before anything is started. A port that is
//!   taken between the look and the start costs another try, if the port was not prescribed.
//! * Another server answers all the same: [`StartError::NotOurs`].
//! * The program is missing, refuses its configuration, or never gets ready: typed, with the end of its log.
//! * The test ends without unwinding: the kernel kills the server ([`Proc::spawn_tied`](crate::Proc)).
//! * A test run looks for what was left behind: the server keeps its environment, and the mark in it.
//! * A frozen server answers nobody: the harness's own questions fail after 5 s instead of hanging.

mod error;
mod info;
mod options;
mod resp;
mod server;

pub use error::StartError;
pub use info::CommandStat;
#[cfg(feature = "tls")]
pub use options::ClientAuth;
pub use options::{Persistence, RedisOptions};
pub use resp::{Connection, Reply, encode};
pub use server::{Keep, RedisServer};
