//! Redis servers as stores to be judged: a plain one behind a proxy that loses replies, and one with TLS, client
//! certificates and a user who may do the least that is needed.
#![allow(dead_code, unreachable_pub)] // each test binary uses a part of it

use std::sync::{Arc, LazyLock};

use leasehold_conformance::{Fault, FaultInjector, Harness};
use leasehold_core::{BackendContext, BackendError, LeaseBackend, LeaseName, async_trait};
use leasehold_redis::{Address, RedisBackend, RedisConfig, Secret};
use leasehold_testkit::proxy::{Action, Ending, Framing, Proxy, When};
use leasehold_testkit::redis::{ClientAuth, RedisOptions, RedisServer};
use leasehold_testkit::tls::Pki;

/// The namespace of the runs.
pub const NAMESPACE: &str = "conformance";
/// The user of the run with an access list, as docs.md has it.
pub const USER: &str = "leasehold";
const PASSWORD: &str = "p@ss:w/rd%";

/// The rights that docs.md says are the least.
pub fn least_rights() -> String {
    let docs = include_str!("../../docs.md");
    let line =
        docs.lines().find(|line| line.starts_with("user leasehold on")).expect("docs.md has the rights");
    let rights = line.split_once("resetkeys").expect("keys come first").1;
    rights.trim().replace("NAMESPACE", NAMESPACE)
}

/// A shared server, and how to reach it.
pub struct Place {
    server: RedisServer,
    proxy: Option<Proxy>,
    pki: Option<Pki>,
}

static PLAIN: LazyLock<Result<Place, String>> = LazyLock::new(|| {
    let server = RedisServer::plain().map_err(|e| e.to_string())?;
    let proxy = Proxy::start(server.addr(), Framing::Resp).map_err(|e| e.to_string())?;
    Ok(Place { server, proxy: Some(proxy), pki: None })
});

static TLS: LazyLock<Result<Place, String>> = LazyLock::new(|| {
    let pki = Pki::new().map_err(|e| e.to_string())?;
    let server = RedisOptions::new()
        .tls(&pki, &pki.server(), ClientAuth::Required)
        .user(USER, PASSWORD, least_rights())
        .start()
        .map_err(|e| e.to_string())?;
    Ok(Place { server, proxy: None, pki: Some(pki) })
});

/// One of the servers.
pub struct Redis {
    name: &'static str,
    place: &'static LazyLock<Result<Place, String>>,
    ignored: &'static str,
}

/// The plain one.
pub fn plain() -> Redis {
    Redis { name: "redis", place: &PLAIN, ignored: include_str!("../ignored.txt") }
}

/// The one with TLS and an access list.
pub fn tls() -> Redis {
    Redis { name: "redis-tls", place: &TLS, ignored: include_str!("../ignored_tls.txt") }
}

impl Redis {
    fn place(&self) -> Result<&'static Place, String> {
        self.place.as_ref().map_err(Clone::clone)
    }

    fn config(&self) -> RedisConfig {
        let place = self.place().expect("looked at before");
        let host = "127.0.0.1".to_owned();
        let mut config = match (&place.proxy, &place.pki) {
            (Some(proxy), _) => RedisConfig::new(Address::Tcp { host, port: proxy.port() }),
            (None, Some(_)) => RedisConfig::new(Address::Tls { host, port: place.server.port() }),
            (None, None) => RedisConfig::new(Address::Tcp { host, port: place.server.port() }),
        };
        if let Some(pki) = &place.pki {
            let client = pki.client();
            (config.tls.ca, config.tls.cert, config.tls.key) =
                (Some(pki.ca()), Some(client.cert), Some(client.key));
            (config.user, config.password) = (Some(USER.to_owned()), Some(Secret::new(PASSWORD)));
        }
        config.namespace = NAMESPACE.parse().expect("legal");
        config
    }
}

#[async_trait]
impl Harness for Redis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn unavailable(&self) -> Option<String> {
        self.place()
            .err()
            .map(|why| format!("no Redis server could be started ({why}): apt-get install redis-server"))
    }

    async fn connect(&self, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, BackendError> {
        Ok(Arc::new(RedisBackend::connect(self.config(), context).await?))
    }

    fn fault(&self) -> Option<&dyn FaultInjector> {
        Some(self)
    }

    fn ignored(&self) -> &'static str {
        self.ignored
    }
}

#[async_trait]
impl FaultInjector for Redis {
    fn offers(&self, fault: Fault) -> Result<(), &'static str> {
        match fault {
            Fault::LoseRecord | Fault::CorruptRecord => Ok(()),
            Fault::LoseNextReply if self.place().is_ok_and(|place| place.proxy.is_some()) => Ok(()),
            Fault::LoseNextReply => Err("which reply it is cannot be read on an encrypted connection"),
            _ => Err("nobody wrote it yet"),
        }
    }

    async fn inject(&self, fault: Fault, name: &LeaseName) -> Result<(), String> {
        let place = self.place()?;
        let encoded = name.percent_encoded();
        let key = format!("lh:{NAMESPACE}:{{{encoded}}}:l");
        match fault {
            Fault::LoseRecord => drop(place.server.must(["DEL", &key])),
            Fault::CorruptRecord => drop(place.server.must(["SET", &key, "{\"owner\":1}"])),
            Fault::LoseNextReply => {
                let proxy = place.proxy.as_ref().ok_or("no proxy")?;
                let calls =
                    When::reply_to_request().containing("EVALSHA").containing(format!("{{{encoded}}}"));
                let _rule = proxy.once(calls, Action::Lose(Ending::Reset));
            }
            _ => return Err("nobody wrote it yet".to_owned()),
        }
        Ok(())
    }
}
