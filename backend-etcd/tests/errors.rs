//! Wrong settings, missing rights and absent servers: typed errors that say what to do and hide what is secret.

mod support;

use std::time::Duration;

use leasehold_core::{BackendError, Effect, ErrorKind, LeaseBackend, RenewAnswer, Watchdog};
use leasehold_etcd::{EtcdBackend, EtcdConfig, Secret};
use leasehold_testkit::Port;
use leasehold_testkit::etcd::{EtcdOptions, EtcdServer};
use leasehold_testkit::tls::Pki;
use support::*;

/// A wrong setting is told within this, and never hangs.
const AT_ONCE: Duration = Duration::from_secs(8);
const PASSWORD: &str = "s3ntinel-p@ss w\u{f6}rd%#/";

async fn connect(config: EtcdConfig) -> Result<EtcdBackend, BackendError> {
    // Outlives every backend of this process.
    let watchdog = Watchdog::global().expect("a watchdog");
    let connecting = EtcdBackend::connect(config, watchdog.context());
    tokio::time::timeout(AT_ONCE, connecting).await.expect("it answers in time")
}

async fn refused(config: EtcdConfig) -> BackendError {
    let error = connect(config).await.expect_err("refused");
    assert_eq!(error.effect(), Effect::None, "{error}");
    let source = std::error::Error::source(&error).map(ToString::to_string);
    let shown = format!("{error} {error:?} {source:?}");
    assert!(!shown.contains("s3ntinel"), "{shown}");
    error
}

fn login(server: &EtcdServer, user: &str, password: &str) -> EtcdConfig {
    let mut config = config(server.addr());
    (config.user, config.password) = (Some(user.to_owned()), Some(Secret::new(password)));
    config
}

/// Logins and rights are told at connect, by what is wrong with them.
#[tokio::test]
async fn logins_and_rights() {
    let server = EtcdServer::plain().expect("apt-get install etcd-server etcd-client");
    let error = refused(login(&server, "app", PASSWORD)).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.message().contains("switched off"), "{error}");

    server.add_user("app", PASSWORD, "leasehold/");
    server.enable_auth();
    let backend = connect(login(&server, "app", PASSWORD)).await.expect("let in");
    let held = grant(&backend, "n", TTL).await;
    let mut elsewhere = login(&server, "app", PASSWORD);
    elsewhere.prefix = "elsewhere".to_owned();
    for (config, advice) in [
        (login(&server, "app", "s3ntinel-wrong"), "password"),
        (login(&server, "nobody", PASSWORD), "password"),
        (config(server.addr()), "login"),
        (elsewhere, "readwrite"),
    ] {
        let error = refused(config).await;
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.message().contains(advice), "{error}");
    }
    // Logins are forgotten by a server that is started anew: what is held goes on, waiting too.
    server.restart().expect("a start");
    let (answer, _) =
        until("a renewal", Duration::from_secs(10), async || try_renew(&backend, &held).await.ok()).await;
    assert!(matches!(answer, RenewAnswer::Renewed { .. }), "{answer:?}");
    server.restart().expect("a start");
    until("a waiter", Duration::from_secs(10), async || backend.waiter(&request("n", TTL)).await.ok()).await;
}

/// Certificates that do not fit are told, and nothing hangs.
#[tokio::test]
async fn certificates() {
    let pki = Pki::new().expect("certificates");
    let server = EtcdOptions::new().tls(&pki, &pki.server(), true).start().expect("a server");
    let mut good = config(server.addr());
    good.encrypted = true;
    let client = pki.client();
    (good.tls.ca, good.tls.cert, good.tls.key) = (Some(pki.ca()), Some(client.cert), Some(client.key));
    let backend = connect(good.clone()).await.expect("let in");
    grant(&backend, "n", TTL).await;

    let mut stranger = good.clone();
    stranger.tls.ca = Some(pki.foreign_ca());
    let mut bare = good.clone();
    (bare.tls.cert, bare.tls.key) = (None, None);
    let mut missing = good.clone();
    missing.tls.ca = Some("/nowhere/ca.pem".into());
    let mut elsewhere = good.clone();
    elsewhere.tls.server_name = Some("elsewhere.invalid".to_owned());
    let mut plain = good;
    plain.encrypted = false;
    plain.tls = Default::default();
    for config in [stranger, bare, missing, elsewhere, plain] {
        let error = refused(config).await;
        let kinds = [
            ErrorKind::ConfigInvalid,
            ErrorKind::PermissionDenied,
            ErrorKind::Unavailable,
            ErrorKind::Timeout,
        ];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}

/// Nobody there, a frozen server, and a key of the tokens that holds something else.
#[tokio::test]
async fn absent_and_sick_servers() {
    let port = Port::pick().expect("a port");
    let error = refused(config(port.addr())).await;
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");

    let server = EtcdServer::plain().expect("a server");
    server.must(["put", "leasehold/meta", "something else"]);
    let error = refused(config(server.addr())).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");

    server.freeze();
    let error = refused(config(server.addr())).await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    server.thaw();
}
