//! Each certificate is good or bad in the way that its name says, to a client that is not ours.

use std::process::{Command, Stdio};

use leasehold_testkit::redis::{ClientAuth, RedisOptions, RedisServer};
use leasehold_testkit::tls::{Identity, Pki};

fn server(pki: &Pki, identity: &Identity, clients: ClientAuth) -> RedisServer {
    RedisOptions::new().tls(pki, identity, clients).start().expect("redis-server with TLS")
}

/// What redis-cli says to a PING.
fn ping(server: &RedisServer, ca: &std::path::Path, client: Option<&Identity>) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "--tls", "--cacert"]).arg(ca);
    if let Some(client) = client {
        command.arg("--cert").arg(&client.cert).arg("--key").arg(&client.key);
    }
    let out = command.arg("PING").stdin(Stdio::null()).output().expect("redis-cli");
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// What OpenSSL's client makes of the server's certificate, as found under `host`.
fn verified(server: &RedisServer, ca: &std::path::Path, host: &str) -> bool {
    let out = Command::new("openssl")
        .args([
            "s_client",
            "-connect",
            &server.addr().to_string(),
            "-verify_return_error",
            "-verify_ip",
            host,
        ])
        .arg("-CAfile")
        .arg(ca)
        .stdin(Stdio::null())
        .output()
        .expect("openssl");
    out.status.success()
}

#[test]
fn a_good_client_gets_through_and_others_do_not() {
    let pki = Pki::new().expect("certificates");
    let server = server(&pki, &pki.server(), ClientAuth::Required);
    assert_eq!(server.url(), format!("rediss://127.0.0.1:{}", server.port()));
    assert_eq!(ping(&server, &pki.ca(), Some(&pki.client())).trim(), "PONG");
    for (what, ca, client) in [
        ("no certificate", pki.ca(), None),
        ("a foreign one", pki.ca(), Some(pki.foreign_client())),
        ("an expired one", pki.ca(), Some(pki.expired_client())),
        ("the wrong authority", pki.foreign_ca(), Some(pki.client())),
    ] {
        let answer = ping(&server, &ca, client.as_ref());
        assert!(!answer.contains("PONG"), "{what}: {answer}");
    }
    // The harness comes in by its own way, whatever the port speaks.
    assert_eq!(server.must(["PING"]).text().as_deref(), Some("PONG"));
}

#[test]
fn a_client_may_be_asked_for_nothing() {
    let pki = Pki::new().expect("certificates");
    for clients in [ClientAuth::Optional, ClientAuth::None] {
        let server = server(&pki, &pki.server(), clients);
        assert_eq!(ping(&server, &pki.ca(), None).trim(), "PONG", "{clients:?}");
    }
}

#[test]
fn each_bad_server_is_bad_in_its_own_way() {
    let pki = Pki::new().expect("certificates");
    let start = |identity: Identity| server(&pki, &identity, ClientAuth::None);
    let good = start(pki.server());
    assert!(verified(&good, &pki.ca(), "127.0.0.1"));
    assert!(!verified(&good, &pki.foreign_ca(), "127.0.0.1"), "by another authority");
    assert!(!verified(&start(pki.expired_server()), &pki.ca(), "127.0.0.1"), "expired");
    let elsewhere = start(pki.wrong_host_server());
    assert!(!verified(&elsewhere, &pki.ca(), "127.0.0.1"), "another host's");
    assert!(verified(&elsewhere, &pki.ca(), "192.0.2.1"), "and nothing else is wrong with it");
    let foreign = start(pki.foreign_server());
    assert!(!verified(&foreign, &pki.ca(), "127.0.0.1"), "foreign");
    assert!(verified(&foreign, &pki.foreign_ca(), "127.0.0.1"), "and nothing else is wrong with it");
}

#[test]
fn the_files_live_as_long_as_somebody_needs_them() {
    let pki = Pki::new().expect("certificates");
    let dir = pki.dir().to_owned();
    let server = server(&pki, &pki.server(), ClientAuth::None);
    drop(pki);
    assert!(dir.exists(), "the server may be restarted with them");
    drop(server);
    assert!(!dir.exists());
}
