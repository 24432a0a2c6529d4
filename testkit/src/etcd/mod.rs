//! A real etcd server for one test: private, known by its process, frozen and killed at will.
//!
//! 1. [`EtcdOptions`] say how it is to run; [`EtcdOptions::start`] reserves its ports, looks that nobody answers on
//!    them, and starts the program in an empty directory so that it dies with the test process.
//! 2. It is ready when it says that it is healthy, which takes a write through its log, and when the kernel's tables
//!    show the very process that was started listening on its ports.
//! 3. [`EtcdServer::freeze`], [`kill`](EtcdServer::kill), [`restart`](EtcdServer::restart) do to it what machines do.
//! 4. [`EtcdServer::ctl`] asks it as an operator does, by `etcdctl`, straight and past every proxy.
//! 5. Dropped, the server is killed by its own pid, reaped, and its directory removed.
//!
//! What can go wrong, and where it is handled:
//! * Another server sits on a port: [`StartError::NoPort`], before anything is started.
//! * Another process answers all the same: [`StartError::NotOurs`].
//! * The program is missing, ends, or never gets ready: typed, with the end of its log.

mod options;
mod server;

pub use crate::redis::StartError;
pub use options::EtcdOptions;
pub use server::EtcdServer;
