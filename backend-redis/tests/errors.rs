//! Wrong settings, missing rights and sick servers: typed errors that say what to do and hide what is secret.

mod support;

use std::time::Duration;

use leasehold_core::{
    BackendError, Effect, ErrorKind, FencedStore, LeaseAdmin, LeaseBackend, Page, RenewAnswer, Token,
    Watchdog,
};
use leasehold_redis::{Address, Protocol, RedisBackend, RedisConfig, Secret, TlsConfig};
use leasehold_testkit::redis::{ClientAuth, RedisOptions, RedisServer};
use leasehold_testkit::tls::Pki;
use support::*;

/// A wrong setting is told within this, and never hangs.
const AT_ONCE: Duration = Duration::from_secs(4);
const PASSWORD: &str = "s3ntinel-p@ss w\u{f6}rd%#/";

async fn connect(config: RedisConfig) -> Result<RedisBackend, BackendError> {
    // Outlives every backend of this process.
    let watchdog = Watchdog::global().expect("a watchdog");
    let connecting = RedisBackend::connect(config, watchdog.context());
    tokio::time::timeout(AT_ONCE, connecting).await.expect("it answers in time")
}

async fn refused(config: RedisConfig) -> BackendError {
    let error = connect(config).await.expect_err("refused");
    assert_eq!(error.effect(), Effect::None, "{error}");
    let shown = format!("{error} {error:?} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(!shown.contains("s3ntinel"), "{shown}");
    error
}

/// A host name without an address says so, in words of its own.
#[tokio::test]
async fn unknown_hosts_are_named_as_such() {
    // An empty label: refused without asking a name server (RFC 1035).
    let error =
        refused(RedisConfig::new(Address::Tcp { host: "store..invalid".to_owned(), port: 6379 })).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("no address"), "{error}");
}

fn server(options: RedisOptions) -> RedisServer {
    options.start().expect("apt-get install redis-server")
}

fn login(server: &RedisServer, user: Option<&str>, password: &str) -> RedisConfig {
    let mut config = config(server.addr());
    config.user = user.map(str::to_owned);
    config.password = Some(Secret::new(password));
    config
}

/// B81: passwords of all kinds are sent as they are, in both protocols; wrong ones are refused.
#[tokio::test]
async fn logins() {
    let open = server(RedisOptions::new());
    let error = refused(login(&open, None, PASSWORD)).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");

    let with_password = server(RedisOptions::new().password(PASSWORD));
    let with_user = server(RedisOptions::new().user("ü:@", PASSWORD, "~* &* +@all"));
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        for (server, user) in [(&with_password, None), (&with_user, Some("ü:@"))] {
            let mut config = login(server, user, PASSWORD);
            config.protocol = protocol;
            let backend = connect(config.clone()).await.expect("let in");
            grant(&backend, &format!("{protocol:?}"), TTL).await;
            config.password = Some(Secret::new("s3ntinel-wrong"));
            let error = refused(config.clone()).await;
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            assert!(error.message().contains("password"), "{error}");
            (config.user, config.password) = (None, None);
            if user.is_none() {
                let error = refused(config).await;
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            }
        }
    }
}

/// A missing right is named, whichever it is, at the call that needs it.
#[tokio::test]
async fn missing_rights_are_named() {
    let all = "~lh:default:* &lh:default:*";
    let least = "-@all +evalsha +eval +info +time +ping +get +getrange +set +del +pexpire +pttl +type +publish +subscribe +unsubscribe +scan +hget +hset +hkeys";
    let mut options = RedisOptions::new();
    let mut users = Vec::new();
    for (missing, wanted) in [
        ("evalsha", "evalsha"),
        ("get", "get"),
        ("getrange", "getrange"),
        ("set", "set"),
        ("time", "time"),
        ("publish", "publish"),
        ("pexpire", "pexpire"),
        ("scan", "scan"),
        ("hset", "hset"),
        ("info", "info"),
    ] {
        let user = format!("without-{missing}");
        options = options.user(
            user.clone(),
            PASSWORD,
            format!("{all} {} ", least.replace(&format!("+{missing} "), "")),
        );
        users.push((user, wanted));
    }
    options = options.user("elsewhere", PASSWORD, format!("~other:* &other:* {least}"));
    let server = server(options);
    for (user, wanted) in users {
        let error = match connect(login(&server, Some(&user), PASSWORD)).await {
            Err(error) => error,
            Ok(backend) => {
                first_error(&backend, &user).await.unwrap_or_else(|| panic!("{user} may do everything"))
            }
        };
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{user}: {error}");
        assert!(error.message().contains(wanted), "{user}: {error}");
    }
    let backend = connect(login(&server, Some("elsewhere"), PASSWORD)).await.expect("let in");
    let error = first_error(&backend, "n").await.expect("no right to our keys");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.message().contains("key"), "{error}");
}

/// An attempt that a missing right stops half-way leaves floor and lease as they were: a floor that it lowered would
/// let tokens fall.
#[tokio::test]
async fn a_missing_right_lowers_no_floor() {
    let rights = "~lh:default:* &lh:default:* -@all +evalsha +eval +info +time +ping +getrange +set +del +pexpire +pttl";
    let users = RedisOptions::new().user("noget", PASSWORD, rights).user("full", PASSWORD, "~* &* +@all");
    let server = server(users);
    let full = connect(login(&server, Some("full"), PASSWORD)).await.expect("let in");
    let limited = connect(login(&server, Some("noget"), PASSWORD)).await.expect("let in");
    let floor_of = |text: &str| server.must(["GET", &key(text, 'f')]).text();
    full.raise_epoch().await.expect("raised");
    let held = grant(&full, "known", TTL).await;
    release(&full, &held).await;
    let floor = floor_of("known");
    for text in ["known", "new"] {
        let error = try_attempt(&limited, &request(text, TTL)).await.expect_err("a right is missing");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.message().contains("+get"), "{error}");
        assert!(server.must(["GET", &key(text, 'l')]).text().is_none(), "{text} is taken");
    }
    assert_eq!([floor_of("known"), floor_of("new")], [floor, None]);
    let again = grant(&full, "known", TTL).await;
    assert!(again.token > held.token, "{} after {}", again.token, held.token);
}

/// The right to publish is asked for when a store is prepared, not at the first release for which somebody waits.
#[tokio::test]
async fn preparing_finds_a_channel_that_is_forbidden() {
    let rights = "~lh:default:* &elsewhere:* +@all";
    let server = server(RedisOptions::new().user("deaf", PASSWORD, rights));
    let backend = connect(login(&server, Some("deaf"), PASSWORD)).await.expect("let in");
    let error = LeaseAdmin::prepare(&backend).await.expect_err("no right to the channel");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.message().contains("&lh:NAMESPACE:*"), "{error}");
    // In a script too.
    let held = grant(&backend, "n", TTL).await;
    refusal(&backend, "n", TTL).await;
    let released = backend.release(&leasehold_core::ReleaseRequest::new(held.claim(), now())).await;
    let error = released.expect_err("no right to the channel");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::PermissionDenied, Effect::Unknown), "{error}");
    assert!(error.message().contains("&lh:NAMESPACE:*"), "{error}");
}

/// The first error of a round through everything.
async fn first_error(backend: &RedisBackend, text: &str) -> Option<BackendError> {
    let round = async {
        let [request, request_of_a_rival] = [request(text, TTL), request(text, TTL)];
        let leasehold_core::Attempt::Granted(grant) = try_attempt(backend, &request).await? else {
            panic!("held by nobody")
        };
        try_renew(backend, &grant).await?;
        // The release is published to those who were refused.
        try_attempt(backend, &request_of_a_rival).await?;
        backend.release(&leasehold_core::ReleaseRequest::new(grant.claim(), now())).await?;
        LeaseAdmin::list(backend, "", &Page::first()).await?;
        backend.put(&name(text), "k", b"v", grant.token).await?;
        Ok::<(), BackendError>(())
    };
    round.await.err()
}

#[tokio::test]
async fn servers_that_cannot_keep_leases_are_refused() {
    let primary = server(RedisOptions::new());
    let replica = server(RedisOptions::new().replica_of(primary.addr()));
    replica.wait_linked();
    let error = refused(config(replica.addr())).await;
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid, "{error}");
    assert!(error.message().contains("replica"), "{error}");

    for policy in ["allkeys-lru", "volatile-ttl"] {
        let evicting = server(RedisOptions::new().max_memory(64 << 20, policy));
        let error = refused(config(evicting.addr())).await;
        assert_eq!(error.kind(), ErrorKind::ConfigInvalid, "{error}");
        assert!(error.message().contains(policy) && error.message().contains("allow_eviction"), "{error}");
        let mut allowed = config(evicting.addr());
        allowed.allow_eviction = true;
        grant(&connect(allowed).await.expect("allowed"), "n", TTL).await;
    }

    let cluster = server(RedisOptions::new().config("cluster-enabled", "yes"));
    let error = refused(config(cluster.addr())).await;
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid, "{error}");
    assert!(error.message().contains("cluster"), "{error}");

    let mut nowhere = config(primary.addr());
    nowhere.db = 999_999;
    let error = refused(nowhere).await;
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid, "{error}");

    let full = server(RedisOptions::new().config("maxclients", "1"));
    let mut first = std::net::TcpStream::connect(full.addr()).expect("a client");
    std::io::Write::write_all(&mut first, b"PING\r\n").expect("sent");
    std::io::Read::read_exact(&mut first, &mut [0; 7]).expect("let in");
    let error = refused(config(full.addr())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn addresses_where_nobody_answers() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut silent = config(listener.local_addr().expect("bound"));
    silent.connect_timeout = Duration::from_millis(300);
    let error = refused(silent).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let addr = listener.local_addr().expect("bound");
    drop(listener);
    let error = refused(config(addr)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("listens"), "{error}");
    let error = refused(RedisConfig::new(Address::Unix("/nowhere/at/all.sock".into()))).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // Another protocol: an HTTP server's answer is none of Redis.
    let http = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = http.local_addr().expect("bound");
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = http.accept().expect("a client");
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("sent");
        let _ = std::io::Read::read(&mut stream, &mut [0; 64]);
    });
    let error = refused(config(addr)).await;
    assert!(matches!(error.kind(), ErrorKind::Other | ErrorKind::Unavailable), "{error}");
    answering.join().expect("no panic");
}

#[tokio::test]
async fn a_unix_socket_is_a_server_too() {
    let server = server(RedisOptions::new());
    let path = server.socket().to_owned();
    let backend = connect(RedisConfig::new(Address::Unix(path))).await.expect("connected");
    let held = grant(&backend, "n", TTL).await;
    assert!(matches!(renew(&backend, &held).await, RenewAnswer::Renewed { .. }));
    drop(server);
}

/// TLS: what does not fit is told apart, within the time limit.
#[tokio::test]
async fn tls_that_does_not_fit_says_why() {
    let pki = Pki::new().expect("certificates");
    let good = server(RedisOptions::new().tls(&pki, &pki.server(), ClientAuth::Required));
    let tls = |server: &RedisServer| {
        let mut config = RedisConfig::new(Address::Tls { host: "localhost".to_owned(), port: server.port() });
        let client = pki.client();
        config.tls = TlsConfig::default();
        (config.tls.ca, config.tls.cert, config.tls.key) =
            (Some(pki.ca()), Some(client.cert), Some(client.key));
        config
    };
    grant(&connect(tls(&good)).await.expect("connected"), "n", TTL).await;
    let mut insecure = tls(&good);
    (insecure.tls.ca, insecure.tls.insecure) = (None, true);
    grant(&connect(insecure).await.expect("connected"), "m", TTL).await;

    let told = |error: BackendError, kind: ErrorKind, word: &str| {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(word), "no {word:?} in {error}");
    };
    use ErrorKind::{ConfigInvalid, PermissionDenied, Unavailable};

    let mut wrong = tls(&good);
    wrong.tls.ca = Some(pki.foreign_ca());
    told(refused(wrong).await, ConfigInvalid, "tls_ca");
    let mut wrong = tls(&good);
    wrong.tls.ca = None;
    told(refused(wrong).await, ConfigInvalid, "tls_ca");
    let mut wrong = tls(&good);
    (wrong.tls.cert, wrong.tls.key) = (None, None);
    told(refused(wrong).await, PermissionDenied, "tls_cert");
    let mut wrong = tls(&good);
    let foreign = pki.foreign_client();
    (wrong.tls.cert, wrong.tls.key) = (Some(foreign.cert), Some(foreign.key));
    told(refused(wrong).await, PermissionDenied, "tls_cert");
    let mut wrong = tls(&good);
    wrong.tls.key = Some(pki.foreign_client().key);
    told(refused(wrong).await, ConfigInvalid, "tls_key");
    let mut wrong = tls(&good);
    wrong.tls.ca = Some("/nowhere/at/all.pem".into());
    told(refused(wrong).await, ConfigInvalid, "tls_ca");
    let mut wrong = tls(&good);
    wrong.tls.ca = Some(pki.client().key);
    told(refused(wrong).await, ConfigInvalid, "tls_ca");

    let expired = server(RedisOptions::new().tls(&pki, &pki.expired_server(), ClientAuth::None));
    told(refused(tls(&expired)).await, ConfigInvalid, "expired");
    let elsewhere = server(RedisOptions::new().tls(&pki, &pki.wrong_host_server(), ClientAuth::None));
    told(refused(tls(&elsewhere)).await, ConfigInvalid, "tls_server_name");
    let mut named = tls(&elsewhere);
    named.tls.server_name = Some("elsewhere.invalid".to_owned());
    grant(&connect(named).await.expect("connected"), "n", TTL).await;

    // B81: the wrong scheme for the port, both ways.
    let plain = server(RedisOptions::new());
    let error = refused(tls(&plain)).await;
    assert!(matches!(error.kind(), ConfigInvalid | Unavailable), "{error}");
    assert!(error.message().contains("redis://"), "{error}");
    let mut unencrypted = config(good.addr());
    unencrypted.password = Some(Secret::new(PASSWORD));
    told(refused(unencrypted).await, Unavailable, "rediss://");
}

/// A full memory grants nothing, and takes nothing from those who hold.
#[tokio::test]
async fn a_full_memory_still_renews_and_releases() {
    let server = server(RedisOptions::new());
    let backend = connect(config(server.addr())).await.expect("connected");
    let held = grant(&backend, "n", TTL).await;
    let other = grant(&backend, "m", TTL).await;
    release(&backend, &other).await;
    renew(&backend, &held).await;
    server.must(["CONFIG", "SET", "maxmemory", "1"]);
    let error = try_attempt(&backend, &request("m", TTL)).await.expect_err("no memory");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(error.is_retryable() && error.message().contains("maxmemory"), "{error}");
    assert!(matches!(renew(&backend, &held).await, RenewAnswer::Renewed { .. }));
    assert!(matches!(release(&backend, &held).await, leasehold_core::Released::Released));
}

/// B46: a server that refuses writes says so; nothing is changed, and the release can be repeated.
#[tokio::test]
async fn refused_writes_are_told_and_change_nothing() {
    let server = server(RedisOptions::new());
    let backend = connect(config(server.addr())).await.expect("connected");
    let held = grant(&backend, "n", TTL).await;
    server.must(["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let request = leasehold_core::ReleaseRequest::new(held.claim(), now());
    for error in [
        backend.release(&request).await.expect_err("refused"),
        try_renew(&backend, &held).await.expect_err("refused"),
        try_attempt(&backend, &support::request("m", TTL)).await.expect_err("refused"),
    ] {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
        assert!(error.message().contains("min-replicas"), "{error}");
    }
    server.must(["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert!(matches!(renew(&backend, &held).await, RenewAnswer::Renewed { .. }));
    assert!(matches!(backend.release(&request).await, Ok(leasehold_core::Released::Released)));
    assert!(matches!(backend.release(&request).await, Ok(leasehold_core::Released::AlreadyReleased)));
}

/// B62: a primary that became a replica is told, and its connection is made anew.
#[tokio::test]
async fn a_demoted_primary_is_told() {
    let other = server(RedisOptions::new());
    let server = server(RedisOptions::new());
    let backend = connect(config(server.addr())).await.expect("connected");
    let held = grant(&backend, "n", TTL).await;
    server.must(["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    for _ in 0..2 {
        let error = try_attempt(&backend, &request("m", TTL)).await.expect_err("read-only");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
        assert!(error.message().contains("replica"), "{error}");
    }
    server.must(["REPLICAOF", "NO", "ONE"]);
    // It took the other's data, which has none of ours: the holder is told, not brought back.
    let (answer, _) = until("an answer", TTL, async || try_renew(&backend, &held).await.ok()).await;
    println!("{answer:?}");
    if let RenewAnswer::Lost(cause) = answer {
        assert_eq!(cause.word(), "store_forgot");
    }
    let (_, _) = until("a grant", TTL, async || try_attempt(&backend, &request("m", TTL)).await.ok()).await;
}

/// A server that is busy with somebody's script says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_server_is_told() {
    let server = std::sync::Arc::new(server(RedisOptions::new().config("busy-reply-threshold", "20")));
    let backend = connect(config(server.addr())).await.expect("connected");
    let held = grant(&backend, "n", TTL).await;
    let addr = server.addr();
    let looping = std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(addr).expect("a client");
        std::io::Write::write_all(&mut stream, b"EVAL \"while true do end\" 0\r\n").expect("sent");
        let _ = std::io::Read::read(&mut stream, &mut [0; 256]);
    });
    let (error, _) = until("busy", TTL, async || try_renew(&backend, &held).await.err()).await;
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
    let (error, _) = until("told", TTL, async || {
        try_renew(&backend, &held).await.err().filter(|e| e.message().contains("SCRIPT KILL"))
    })
    .await;
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    server.must(["SCRIPT", "KILL"]);
    let (answer, _) = until("over", TTL, async || try_renew(&backend, &held).await.ok()).await;
    assert!(matches!(answer, RenewAnswer::Renewed { .. }), "{answer:?}");
    looping.join().expect("no panic");
}

/// Keys of our shape that leasehold did not write: typed, left as they are, never a grant.
#[tokio::test]
async fn foreign_keys_are_left_alone() {
    let server = server(RedisOptions::new());
    let backend = connect(config(server.addr())).await.expect("connected");
    let plant = |what: char, command: &[&str]| {
        let mut line = vec![command[0].to_owned(), key("n", what)];
        line.extend(command[1..].iter().map(|&word| word.to_owned()));
        server.must(line);
    };
    let newer = format!("2H{}", "0".repeat(80));
    let long = "x".repeat(100_000);
    for (what, command) in [
        ('l', &["SET", "garbage"][..]),
        ('l', &["SET", ""]),
        ('l', &["SET", &newer]),
        ('l', &["SET", &long]),
        ('l', &["LPUSH", "x"]),
        ('f', &["SET", "garbage"]),
        ('f', &["SET", "1790000000654321"]),
        ('f', &["SET", "0000179000000065432x"]),
        // Beyond the last epoch.
        ('f', &["SET", "99999999999999999999"]),
        ('f', &["HSET", "a", "b"]),
    ] {
        server.must(["FLUSHALL"]);
        plant(what, command);
        let dump = || server.must(["DUMP", &key("n", what)]);
        let before = dump();
        let answer = try_attempt(&backend, &request("n", TTL)).await;
        let error = answer.err().unwrap_or_else(|| panic!("{command:?} is a grant"));
        assert_eq!(
            (error.kind(), error.effect()),
            (ErrorKind::Corrupt, Effect::None),
            "{command:?}: {error}"
        );
        let error = backend.inspect(&name("n")).await.err();
        assert!(error.is_none_or(|e| e.kind() == ErrorKind::Corrupt), "{command:?}");
        assert_eq!(dump(), before, "{command:?} was touched");
        if what == 'f' {
            assert!(server.must(["GET", &key("n", 'l')]).text().is_none(), "{command:?} left a grant");
        }
    }
    server.must(["FLUSHALL"]);
    server.must(["SET", "lh:default:m", "garbage"]);
    let error = try_attempt(&backend, &request("n", TTL)).await.expect_err("never a grant");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(backend.raise_epoch().await.is_err());
    server.must(["FLUSHALL"]);

    // An operator's raise looks at all floors before it changes one, and names what is wrong.
    for good in ["a", "z"] {
        let held = grant(&backend, good, TTL).await;
        release(&backend, &held).await;
    }
    plant('f', &["SET", "99999999999999999999"]);
    let before = ["a", "z", "n"].map(|text| server.must(["GET", &key(text, 'f')]));
    for raised in [
        backend.raise_epoch().await.map(drop),
        LeaseAdmin::raise_floor(&backend, None, Token::new(Token::NATIVE_MAX).expect("legal")).await,
    ] {
        let error = raised.expect_err("a floor that cannot be read");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(error.name(), Some(&name("n")), "{error}");
        assert_eq!(["a", "z", "n"].map(|text| server.must(["GET", &key(text, 'f')])), before);
        assert!(server.must(["GET", "lh:default:m"]).text().is_none(), "the namespace was raised");
    }
    server.must(["FLUSHALL"]);
    plant('v', &["SET", "x"]);
    let error = backend.put(&name("n"), "k", b"v", token(7)).await.expect_err("of another type");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(backend.get(&name("n"), "k").await.is_err());
}
