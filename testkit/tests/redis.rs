//! A server that was started for a test is that very server, does what it is told, and is gone afterwards.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_testkit::redis::{Connection, Keep, Persistence, RedisOptions, RedisServer, Reply, StartError};
use leasehold_testkit::{MARK, Port, Process, WallClock, children_of, eventually, listens, stat_of};

/// Far above what a loaded machine needs for one turn of the scheduler.
const BOUND: Duration = Duration::from_secs(20);
/// How long a test waits to see that nothing comes. Too short could only hide a failure, never make one.
const SILENCE: Duration = Duration::from_millis(200);

fn gone(pid: i32) -> bool {
    stat_of(pid).is_none_or(|stat| stat.state == 'Z')
}

/// The id of whoever answers on the port, asked by TCP and not by the harness's own way.
fn process_id(server: &RedisServer) -> String {
    let mut connection = Connection::tcp(server.addr()).expect("it listens");
    let info = connection.command(["INFO", "server"]).expect("an answer").text().expect("a text");
    let line = info.lines().find_map(|line| line.strip_prefix("process_id:"));
    line.expect("every server says it").to_owned()
}

#[test]
fn the_server_that_answers_is_the_one_that_was_started() {
    let server = RedisServer::plain().expect("redis-server");
    let pid = server.pid().expect("it runs");
    assert_eq!(process_id(&server), pid.to_string());
    assert!(listens(pid, server.port()) && server.port() < 22768);
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(server.info("server").get("run_id"), Some(&server.run_id()));
    let exe = Process::open(pid).expect("alive").executable().expect("ours");
    assert!(exe.display().to_string().contains("redis"), "{}", exe.display());
}

#[test]
fn an_impostor_on_the_port_is_found_before_anything_is_started() {
    let real = RedisServer::plain().expect("redis-server");
    // Another test's port.
    let error = RedisOptions::new().port(real.port()).start().expect_err("it is taken");
    assert!(matches!(error, StartError::NoPort(_)), "{error}");

    // A stranger's: nothing of the test kit keeps it from listening, on every address.
    let port = Port::pick().expect("a port").number();
    let stranger = TcpListener::bind(("0.0.0.0", port)).expect("free a moment ago");
    let error = RedisOptions::new().port(port).start().expect_err("somebody answers");
    assert!(matches!(error, StartError::NoPort(_)), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error} does not say who");
    drop(stranger);
    RedisOptions::new().port(port).start().expect("nobody is there now");
}

#[test]
fn an_impostor_that_came_while_the_server_was_down_is_found() {
    let server = RedisOptions::new().persistence(Persistence::AppendAlways).start().expect("redis-server");
    server.must(["SET", "kept", "yes"]);
    server.kill();
    let impostor = TcpListener::bind(server.addr()).expect("the port is free as soon as it is killed");
    let error = server.restart(Keep::Nothing).expect_err("somebody answers");
    assert!(matches!(error, StartError::NoPort(_)), "{error}");
    assert_eq!(server.pid(), None);
    drop(impostor);
    server.restart(Keep::Data).expect("nobody is there now");
    assert_eq!(process_id(&server), server.pid().expect("it runs").to_string());
    assert_eq!(server.must(["GET", "kept"]).text().as_deref(), Some("yes"), "nothing was thrown away");
}

#[test]
fn what_cannot_start_says_why() {
    let error = RedisOptions::new().program("no-such-server").start().expect_err("there is none");
    // The kernel's tie is made by setpriv, which finds it missing.
    assert!(matches!(error, StartError::Ended { .. } | StartError::Program { .. }), "{error}");
    let error = RedisOptions::new().config("maxmemory", "many").start().expect_err("not a number");
    assert!(matches!(error, StartError::Ended { .. }), "{error}");
    // It runs, and answers the harness, and is not who listens on the port.
    let error = RedisOptions::new().config("port", "0").start().expect_err("nobody is on its port");
    assert!(matches!(error, StartError::NotOurs { .. }), "{error}");
}

#[test]
fn a_frozen_server_takes_connections_and_answers_none_until_it_is_thawed() {
    let server = RedisServer::plain().expect("redis-server");
    let pid = server.pid().expect("it runs");
    let mut waiting = Connection::tcp(server.addr()).expect("it listens");
    server.freeze();
    assert_eq!(stat_of(pid).map(|stat| stat.state), Some('T'));
    waiting.send(["SET", "late", "1"]).expect("the kernel takes it");
    let mut other = Connection::tcp(server.addr()).expect("the kernel accepts for it");
    other.answer_within(SILENCE).expect("not zero");
    other.send(["PING"]).expect("the kernel takes it");
    let asked = Instant::now();
    let error = other.receive().expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    assert!(asked.elapsed() >= SILENCE);
    server.thaw();
    assert_ne!(stat_of(pid).map(|stat| stat.state), Some('T'));
    assert_eq!(waiting.receive().expect("it goes on"), Reply::Status("OK".into()));
    assert_eq!(server.must(["GET", "late"]).text().as_deref(), Some("1"), "what was sent meanwhile is done");
    assert_eq!(server.pid(), Some(pid));
}

#[test]
fn a_kill_needs_no_thaw_and_ends_connections_at_once() {
    let server = RedisServer::plain().expect("redis-server");
    let pid = server.pid().expect("it runs");
    let mut connection = Connection::tcp(server.addr()).expect("it listens");
    server.freeze();
    server.kill();
    assert!(gone(pid) && server.pid().is_none());
    connection.command(["PING"]).expect_err("its server is gone");
    assert!(Connection::tcp(server.addr()).is_err(), "nobody listens");
    assert!(server.command(["PING"]).is_err(), "nor on the socket");
    server.kill();
}

#[test]
fn a_restart_keeps_what_was_written_or_nothing() {
    for persistence in [Persistence::AppendAlways, Persistence::AppendEverySecond] {
        let server = RedisOptions::new().persistence(persistence).start().expect("redis-server");
        let (pid, run_id, port) = (server.pid(), server.run_id(), server.port());
        server.must(["SET", "kept", "yes"]);
        server.restart(Keep::Data).expect("again");
        assert_ne!(server.pid(), pid);
        assert_ne!(server.run_id(), run_id, "another start is another run");
        assert_eq!(server.port(), port);
        assert_eq!(server.must(["GET", "kept"]).text().as_deref(), Some("yes"), "{persistence:?}");
        server.restart(Keep::Nothing).expect("again");
        assert_eq!(server.must(["DBSIZE"]), Reply::Integer(0));
        // Stopped in order, and started by hand.
        server.must(["SET", "kept", "again"]);
        server.stop();
        assert_eq!(server.pid(), None);
        server.restart(Keep::Data).expect("again");
        assert_eq!(server.must(["GET", "kept"]).text().as_deref(), Some("again"));
    }
}

#[test]
fn a_server_in_memory_forgets_and_does_not_pretend_to_keep() {
    let server = RedisServer::plain().expect("redis-server");
    server.must(["SET", "kept", "no"]);
    let pid = server.pid();
    assert!(matches!(server.restart(Keep::Data), Err(StartError::KeepsNothing)));
    assert_eq!(server.pid(), pid, "it was left as it is");
    server.restart(Keep::Nothing).expect("again");
    assert_eq!(server.must(["DBSIZE"]), Reply::Integer(0));
}

#[test]
fn a_server_is_found_by_its_mark_and_its_children_end_with_it() {
    let server = RedisOptions::new().config("rdb-key-save-delay", "10000000").start().expect("redis-server");
    let pid = server.pid().expect("it runs");
    let marked = || {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("ours");
        let prefix = format!("{MARK}=");
        environment.split(|&b| b == 0).any(|pair| pair.starts_with(prefix.as_bytes()))
    };
    assert!(marked(), "whoever looks for leftovers would not see it");
    // Another process of its own: it writes a snapshot, ten seconds for each key.
    server.must(["SET", "a", "1"]);
    server.must(["BGSAVE"]);
    let children = children_of(pid);
    let [child] = children.as_slice() else { panic!("one child: {children:?}") };
    server.kill();
    eventually(Duration::from_secs(5), "it would go on for ten seconds", || gone(child.pid).then_some(()));
}

#[test]
fn a_drop_leaves_no_process_and_no_file() {
    let server = RedisOptions::new().persistence(Persistence::AppendAlways).start().expect("redis-server");
    let (pid, dir) = (server.pid().expect("it runs"), server.socket().parent().expect("a folder").to_owned());
    server.freeze();
    assert!(dir.exists());
    drop(server);
    assert!(gone(pid) && !dir.exists());

    let panicked = std::panic::catch_unwind(|| {
        let server = RedisServer::plain().expect("redis-server");
        std::panic::panic_any(server.pid().expect("it runs"));
    });
    let pid = *panicked.expect_err("it panics").downcast::<i32>().expect("the pid");
    assert!(gone(pid), "a test that fails leaves nothing either");
}

const CHILD: &str = "LEASEHOLD_TESTKIT_CHILD";

/// Not a test of its own: the process of the one below.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    // On a thread that ends at once: the server must not end with it.
    let server = std::thread::spawn(|| RedisServer::plain().expect("redis-server")).join().expect("no panic");
    let dir = server.socket().parent().expect("a folder");
    println!("server {} {}", server.pid().expect("it runs"), dir.display());
    // No drop, no unwinding.
    std::process::abort();
}

#[test]
fn a_test_that_is_aborted_leaves_no_server() {
    let out = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .output()
        .expect("this test");
    assert!(out.status.signal().is_some(), "it was to abort: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    let (_, told) = text.lines().find_map(|line| line.split_once("server ")).expect("it has started one");
    let (pid, dir) = told.split_once(' ').expect("a pid and a folder");
    let pid: i32 = pid.parse().expect("a number");
    eventually(BOUND, "the kernel kills the server of a process that ended", || gone(pid).then_some(()));
    // Nobody was left to do that.
    std::fs::remove_dir_all(dir.trim()).expect("the server's own folder");
}

#[test]
fn two_servers_know_nothing_of_each_other() {
    let both = [(); 2].map(|()| std::thread::spawn(|| RedisServer::plain().expect("redis-server")));
    let [one, two] = both.map(|thread| thread.join().expect("no panic"));
    assert_ne!(one.port(), two.port());
    one.must(["SET", "x", "1"]);
    assert_eq!(two.must(["EXISTS", "x"]), Reply::Integer(0));
    one.freeze();
    assert_eq!(two.must(["PING"]).text().as_deref(), Some("PONG"));
    drop(one);
    assert_eq!(two.must(["PING"]).text().as_deref(), Some("PONG"));
}

#[test]
fn logins_are_as_they_were_given() {
    let (key, user_key) = ("p@\"s\\w ä#%", "u ser/key=");
    let server = RedisOptions::new()
        .password(key)
        .user("app", user_key, "~app:* &app:* +@all -@dangerous")
        .start()
        .expect("redis-server");
    let ask = |login: &[&str], command: &[&str]| {
        let mut connection = Connection::tcp(server.addr()).expect("it listens");
        if !login.is_empty() {
            let login = [&["AUTH"], login].concat();
            assert!(!connection.command(&login).expect("an answer").is_error(), "{login:?}");
        }
        connection.command(command).expect("an answer").text().unwrap_or_default()
    };
    assert!(ask(&[], &["GET", "x"]).starts_with("NOAUTH"));
    assert_eq!(ask(&[key], &["SET", "x", "1"]), "OK");
    assert!(ask(&["app", user_key], &["GET", "x"]).starts_with("NOPERM"));
    assert_eq!(ask(&["app", user_key], &["SET", "app:x", "1"]), "OK");
    assert!(ask(&["app", user_key], &["FLUSHALL"]).starts_with("NOPERM"));
    let url = server.url_as("app", user_key);
    assert!(url.contains("//app:u%20ser%2Fkey%3D@127.0.0.1:"), "{url}");

    // The command line of a process is for everybody to read.
    let pid = server.pid().expect("it runs");
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).expect("ours");
    assert!(!String::from_utf8_lossy(&line).contains("p@"));

    // Without a password of its own the default user is off.
    let server = RedisOptions::new().user("app", "k", "~* +@all").start().expect("redis-server");
    let mut connection = Connection::tcp(server.addr()).expect("it listens");
    assert!(connection.command(["PING"]).expect("an answer").is_error());
    server.must(["PING"]);
}

#[test]
fn the_socket_in_the_file_system_is_a_way_in_for_clients_too() {
    let server = RedisOptions::new().password("k").start().expect("redis-server");
    assert_eq!(server.unix_url(), format!("redis+unix://{}", server.socket().display()));
    let mut client = Connection::unix(server.socket()).expect("it listens");
    assert!(client.command(["PING"]).expect("an answer").is_error(), "the login is asked for here too");
    client.command(["AUTH", "k"]).and_then(Reply::accepted).expect("the password");
    assert_eq!(client.command(["PING"]).expect("an answer").text().as_deref(), Some("PONG"));
}

#[test]
fn calls_are_counted() {
    let server = RedisServer::plain().expect("redis-server");
    server.must(["SET", "a", "1"]);
    server.reset_stats();
    assert_eq!(server.calls("set"), 0);
    for _ in 0..3 {
        server.must(["SET", "a", "1"]);
    }
    server.must(["EVAL", "redis.call('GET', KEYS[1]) return redis.call('GET', KEYS[1])", "1", "a"]);
    assert!(server.command(["LPUSH", "a", "1"]).expect("an answer").is_error());
    let stats = server.command_stats();
    let calls = |name: &str| stats.get(name).map_or(0, |stat| stat.calls);
    assert_eq!((calls("set"), calls("eval"), calls("get")), (3, 1, 2), "{stats:?}");
    assert_eq!(stats.get("lpush").map(|stat| stat.failed_calls), Some(1));
}

#[test]
fn memory_is_limited() {
    let server = RedisOptions::new().max_memory(2 << 20, "noeviction").start().expect("redis-server");
    assert_eq!(server.info("memory").get("maxmemory_policy").map(String::as_str), Some("noeviction"));
    let big = "x".repeat(1 << 20);
    let refused = (0..8).find_map(|n| {
        let reply = server.command(["SET", &format!("k{n}"), &big]).expect("an answer");
        reply.is_error().then(|| reply.text().unwrap_or_default())
    });
    assert!(refused.as_deref().is_some_and(|text| text.starts_with("OOM")), "{refused:?}");
}

#[test]
fn a_replica_follows() {
    let primary = RedisServer::plain().expect("redis-server");
    let replica = RedisOptions::new().replica_of(primary.addr()).start().expect("redis-server");
    replica.wait_linked();
    primary.must(["SET", "x", "1"]);
    eventually(BOUND, "a write reaches the replica within its next turn", || {
        (replica.must(["GET", "x"]).text()? == "1").then_some(())
    });
    let refused = replica.command(["SET", "x", "2"]).expect("an answer").text().unwrap_or_default();
    assert!(refused.starts_with("READONLY"), "{refused}");
}

#[test]
fn the_servers_wall_clock_is_stepped_while_it_runs() {
    let clock = Arc::new(WallClock::build().expect("a C compiler"));
    let server = RedisOptions::new().wall_clock(Arc::clone(&clock)).start().expect("redis-server");
    let time = || -> i64 {
        let reply = server.must(["TIME"]);
        reply.items()[0].text().expect("seconds").parse().expect("a number")
    };
    let before = time();
    server.must(["SET", "short", "1", "PX", "60000"]);
    clock.step_to(3600).expect("own file");
    assert!((3600..3660).contains(&(time() - before)), "an hour ahead");
    assert_eq!(server.must(["EXISTS", "short"]), Reply::Integer(0), "its time is over by that clock");
    server.must(["SET", "long", "1", "PX", "60000"]);
    clock.step_to_millis(-1500).expect("own file");
    assert!((-3..60).contains(&(time() - before)), "a second and a half behind");
    let left = server.must(["PTTL", "long"]).integer().expect("a number");
    assert!(left > 3_600_000, "it lives an hour too long: {left} ms");
}

#[tokio::test(flavor = "current_thread")]
async fn a_server_needs_no_runtime_and_disturbs_none() {
    let server = RedisServer::plain().expect("redis-server");
    server.freeze();
    server.thaw();
    server.restart(Keep::Nothing).expect("again");
    tokio::task::yield_now().await;
    assert_eq!(server.must(["PING"]).text().as_deref(), Some("PONG"));
}
