//! How a server is to run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::{EtcdServer, StartError};

/// How a server is to run: by default as a stock server does, alone, without TLS and without authentication.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    pub(super) program: PathBuf,
    pub(super) heartbeat: Duration,
    pub(super) election: Duration,
    pub(super) args: Vec<OsString>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
}

/// Certificates, and which of them the server wants.
#[cfg(feature = "tls")]
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) pki: crate::tls::Pki,
    pub(super) server: crate::tls::Identity,
    pub(super) wants_client: bool,
}

impl EtcdOptions {
    /// A stock server.
    pub fn new() -> Self {
        EtcdOptions {
            program: PathBuf::from("etcd"),
            heartbeat: Duration::from_millis(100),
            election: Duration::from_secs(1),
            args: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Other times: the shortest lease is one and a half election timeouts, in whole seconds.
    #[must_use]
    pub fn times(mut self, heartbeat: Duration, election: Duration) -> Self {
        (self.heartbeat, self.election) = (heartbeat, election);
        self
    }

    /// One more argument of the program.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Clients come by TLS, with a certificate of their own where `wants_client`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, pki: &crate::tls::Pki, server: &crate::tls::Identity, wants_client: bool) -> Self {
        self.tls = Some(Tls { pki: pki.clone(), server: server.clone(), wants_client });
        self
    }

    /// Starts it; it answers when this returns.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<EtcdServer, StartError> {
        EtcdServer::start(self)
    }
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self::new()
    }
}
