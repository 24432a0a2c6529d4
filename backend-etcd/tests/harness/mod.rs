//! etcd servers as stores to be judged: a stock one behind a proxy that loses replies, and one with TLS, client
//! certificates, and a user who may do the least that is needed.
#![allow(dead_code, unreachable_pub)] // each test binary uses a part of it

use std::sync::{Arc, LazyLock};

use leasehold_conformance::{Fault, FaultInjector, Harness};
use leasehold_core::{BackendContext, BackendError, LeaseBackend, LeaseName, async_trait};
use leasehold_etcd::{Endpoint, EtcdBackend, EtcdConfig, Secret};
use leasehold_testkit::etcd::{EtcdOptions, EtcdServer};
use leasehold_testkit::proxy::{Action, Ending, Framing, Proxy, When};
use leasehold_testkit::tls::Pki;

/// The prefix of the runs.
pub const PREFIX: &str = "conformance";
/// The user of the run with authentication.
const USER: &str = "app";
const PASSWORD: &str = "p@ss:w/rd%";

/// A shared server, and how to reach it.
pub struct Place {
    pub server: EtcdServer,
    pub proxy: Proxy,
    pub pki: Option<Pki>,
}

static PLAIN: LazyLock<Result<Place, String>> = LazyLock::new(|| {
    let server = EtcdServer::plain().map_err(|e| e.to_string())?;
    let proxy = Proxy::start(server.addr(), Framing::Reads).map_err(|e| e.to_string())?;
    Ok(Place { server, proxy, pki: None })
});

static TLS: LazyLock<Result<Place, String>> = LazyLock::new(|| {
    let pki = Pki::new().map_err(|e| e.to_string())?;
    let options = EtcdOptions::new().tls(&pki, &pki.server(), true);
    let server = options.start().map_err(|e| e.to_string())?;
    // As docs.md has it.
    server.add_user(USER, PASSWORD, &format!("{PREFIX}/"));
    server.enable_auth();
    let proxy = Proxy::start(server.addr(), Framing::Reads).map_err(|e| e.to_string())?;
    Ok(Place { server, proxy, pki: Some(pki) })
});

/// A stock server.
pub struct Etcd {
    name: &'static str,
    place: &'static LazyLock<Result<Place, String>>,
    ignored: &'static str,
}

/// The plain one.
pub fn plain() -> Etcd {
    Etcd { name: "etcd", place: &PLAIN, ignored: include_str!("../ignored.txt") }
}

/// The one with TLS and authentication.
pub fn tls() -> Etcd {
    Etcd { name: "etcd-tls", place: &TLS, ignored: include_str!("../ignored_tls.txt") }
}

impl Etcd {
    fn place(&self) -> Result<&'static Place, String> {
        self.place.as_ref().map_err(Clone::clone)
    }
}

#[async_trait]
impl Harness for Etcd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn unavailable(&self) -> Option<String> {
        let why = self.place().err()?;
        Some(format!("no etcd server could be started ({why}): apt-get install etcd-server etcd-client"))
    }

    async fn connect(&self, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, BackendError> {
        let place = self.place().expect("looked at before");
        let (host, port) = ("127.0.0.1".to_owned(), place.proxy.port());
        let mut config = EtcdConfig::new([Endpoint { host, port }]);
        config.prefix = PREFIX.to_owned();
        if let Some(pki) = &place.pki {
            let client = pki.client();
            config.encrypted = true;
            (config.tls.ca, config.tls.cert, config.tls.key) =
                (Some(pki.ca()), Some(client.cert), Some(client.key));
            (config.user, config.password) = (Some(USER.to_owned()), Some(Secret::new(PASSWORD)));
        }
        Ok(Arc::new(EtcdBackend::connect(config, context).await?))
    }

    fn fault(&self) -> Option<&dyn FaultInjector> {
        Some(self)
    }

    fn ignored(&self) -> &'static str {
        self.ignored
    }
}

#[async_trait]
impl FaultInjector for Etcd {
    fn offers(&self, fault: Fault) -> Result<(), &'static str> {
        match fault {
            Fault::LoseRecord | Fault::CorruptRecord => Ok(()),
            Fault::LoseNextReply if self.place().is_ok_and(|place| place.pki.is_none()) => Ok(()),
            Fault::LoseNextReply => Err("which reply it is cannot be read on an encrypted connection"),
            _ => Err("nobody wrote it yet"),
        }
    }

    async fn inject(&self, fault: Fault, name: &LeaseName) -> Result<(), String> {
        let place = self.place()?;
        let key = format!("{PREFIX}/lease/{name}");
        match fault {
            Fault::LoseRecord => drop(place.server.must(["del", &key])),
            Fault::CorruptRecord => drop(place.server.must(["put", &key, "{\"owner\":1}"])),
            Fault::LoseNextReply => {
                let calls = When::reply_to_request().containing(key);
                let _rule = place.proxy.once(calls, Action::Lose(Ending::Reset));
            }
            _ => return Err("nobody wrote it yet".to_owned()),
        }
        Ok(())
    }
}
