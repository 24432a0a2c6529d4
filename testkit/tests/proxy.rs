//! Each fault of the proxy, as a plain client and a plain server see it.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_testkit::eventually;
use leasehold_testkit::proxy::{Action, Direction, Ending, Framing, Peer, Proxy, When};
use leasehold_testkit::redis::{Connection, RedisServer, Reply, encode};

use Direction::{ToClient, ToServer};

/// Far above what a loaded machine needs for one turn of the scheduler.
const BOUND: Duration = Duration::from_secs(20);
/// How long a test waits to see that nothing comes. Too short could only hide a failure, never make one.
const SILENCE: Duration = Duration::from_millis(150);
/// A latency that no scheduling hides.
const LATE: Duration = Duration::from_millis(300);

/// Answers each line `x` with `re:x`, and notes all that happens to it.
struct Server {
    addr: SocketAddr,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound");
        let notes: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&notes);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let noted = Arc::clone(&noted);
                std::thread::spawn(move || serve(stream, &noted));
            }
        });
        Server { addr, notes }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.lock().expect("no panic").clone()
    }

    fn has(&self, note: &str) -> bool {
        self.notes().iter().any(|n| n == note)
    }

    fn wait(&self, note: &str) {
        eventually(BOUND, note, || self.has(note).then_some(()));
    }
}

fn serve(stream: TcpStream, notes: &Mutex<Vec<String>>) {
    let note = |text: String| notes.lock().expect("no panic").push(text);
    note("open".into());
    let mut out = stream.try_clone().expect("a descriptor");
    for line in BufReader::new(stream).lines() {
        match line {
            Ok(line) => {
                note(line.clone());
                if out.write_all(format!("re:{line}\n").as_bytes()).is_err() {
                    break;
                }
            }
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return note("reset".into()),
            Err(_) => break,
        }
    }
    note("end".into());
}

struct Client(TcpStream);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.addr()).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        Client(stream)
    }

    fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\n").as_bytes()).expect("the kernel takes it");
    }

    /// The next line; an error of kind `WouldBlock` when none comes within `bound`.
    fn receive_within(&mut self, bound: Duration) -> io::Result<String> {
        self.0.set_read_timeout(Some(bound))?;
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            match self.0.read(&mut byte)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                _ if byte == *b"\n" => return Ok(String::from_utf8_lossy(&line).into_owned()),
                _ => line.extend(byte),
            }
        }
    }

    fn receive(&mut self) -> io::Result<String> {
        self.receive_within(BOUND)
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.receive().expect("an answer")
    }

    #[track_caller]
    fn hears_nothing(&mut self) {
        let heard = self.receive_within(SILENCE);
        assert!(heard.as_ref().is_err_and(|e| e.kind() == ErrorKind::WouldBlock), "{heard:?}");
    }

    #[track_caller]
    fn ends_with(&mut self, kind: ErrorKind) {
        let heard = self.receive();
        assert!(heard.as_ref().is_err_and(|e| e.kind() == kind), "{heard:?}");
    }
}

fn pair() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr, Framing::Reads).expect("a port");
    (server, proxy)
}

#[test]
fn without_a_fault_everything_gets_through_in_both_directions() {
    let (server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    let mut other = Client::connect(&proxy);
    assert_eq!(client.ask("a"), "re:a");
    assert_eq!(other.ask("b"), "re:b");
    // Far more than is held in flight at a time.
    let long = "x".repeat(3 << 20);
    assert_eq!(client.ask(&long).len(), long.len() + 3);
    drop(client);
    server.wait("end");
    let counts = proxy.counts();
    assert_eq!(counts.connections, 2);
    assert!(counts.to_server.bytes > 3 << 20 && counts.to_client.bytes > 3 << 20, "{counts:?}");
    assert_eq!((counts.to_server.lost, counts.to_client.delayed, counts.cut), (0, 0, 0));
    eventually(BOUND, "the ended connection is forgotten", || (proxy.connections() == 1).then_some(()));
    assert_eq!(other.ask("c"), "re:c");
}

#[test]
fn a_latency_is_for_its_direction_and_keeps_the_order() {
    let (server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    client.ask("warm");
    for direction in [ToServer, ToClient] {
        proxy.latency(direction, LATE, Duration::from_millis(50));
        let asked = Instant::now();
        assert_eq!(client.ask("slow"), "re:slow");
        assert!(asked.elapsed() >= LATE, "{direction:?}: {:?}", asked.elapsed());
        for n in 0..20 {
            client.send(&n.to_string());
        }
        for n in 0..20 {
            assert_eq!(client.receive().expect("an answer"), format!("re:{n}"));
        }
        assert!(proxy.counts().way(direction).delayed > 0);
        proxy.latency(direction, Duration::ZERO, Duration::ZERO);
    }
    // A message under way for an hour goes at once when the link is healed.
    proxy.latency(ToServer, Duration::from_secs(3600), Duration::ZERO);
    client.send("held");
    client.hears_nothing();
    proxy.heal();
    assert_eq!(client.receive().expect("an answer"), "re:held");
    assert!(server.has("held"));
}

#[test]
fn a_dripping_link_passes_byte_by_byte() {
    let (_server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    client.ask("warm");
    proxy.drip(ToServer, NonZeroU32::new(20));
    let asked = Instant::now();
    assert_eq!(client.ask("123456789"), "re:123456789");
    assert!(asked.elapsed() >= Duration::from_millis(450), "ten bytes took {:?}", asked.elapsed());
    assert_eq!(proxy.counts().to_server.dripped, 1);
    // The rest of a message that has begun to drip goes at once when the limit is gone.
    proxy.drip(ToServer, NonZeroU32::new(1));
    client.send(&"y".repeat(600));
    client.hears_nothing();
    proxy.drip(ToServer, None);
    assert_eq!(client.receive().expect("an answer").len(), 603);
}

#[test]
fn behind_a_black_hole_nothing_is_heard_and_nothing_is_lost() {
    let (server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    client.ask("warm");
    proxy.black_hole();
    client.send("held");
    client.hears_nothing();
    assert!(!server.has("held"));
    // New ones are accepted and hang; their target sees none of them.
    let opened = server.notes().iter().filter(|n| *n == "open").count();
    let mut new = Client::connect(&proxy);
    new.send("new");
    let mut given_up = Client::connect(&proxy);
    given_up.send("given up");
    drop(given_up);
    new.hears_nothing();
    assert_eq!(server.notes().iter().filter(|n| *n == "open").count(), opened);
    let counts = proxy.counts();
    assert!(counts.to_server.blocked >= 1 && counts.hung == 2, "{counts:?}");

    // One gives up in the last moment, when nobody looks any more.
    let mut given_up = Client::connect(&proxy);
    given_up.send("given up late");
    eventually(BOUND, "it hangs too", || (proxy.counts().hung == 3).then_some(()));
    drop(given_up);
    proxy.heal();
    assert_eq!(client.receive().expect("an answer"), "re:held");
    assert_eq!(new.receive().expect("an answer"), "re:new");
    assert_eq!(Client::connect(&proxy).ask("last"), "re:last");
    eventually(BOUND, "all who gave up are forgotten", || (proxy.connections() <= 3).then_some(()));
    let notes = server.notes();
    assert!(
        !notes.iter().any(|n| n.starts_with("given up")),
        "their handshakes never got through: {notes:?}"
    );
}

#[test]
fn one_direction_alone_can_be_blocked() {
    let (server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    client.ask("warm");
    proxy.block(ToClient);
    client.send("done");
    server.wait("done");
    client.hears_nothing();
    // Nor does the server's end come through.
    assert!(proxy.counts().to_client.blocked >= 1);
    proxy.unblock(ToClient);
    assert_eq!(client.receive().expect("an answer"), "re:done");

    proxy.block(ToServer);
    client.send("undone");
    client.hears_nothing();
    // The end of the stream waits behind the bytes.
    drop(client);
    std::thread::sleep(SILENCE);
    assert!(!server.has("undone") && !server.has("end") && !server.has("reset"));
    proxy.unblock(ToServer);
    server.wait("undone");
    eventually(BOUND, "and then the end", || (server.has("end") || server.has("reset")).then_some(()));
}

#[test]
fn no_byte_gets_through_after_the_call_has_returned() {
    let (_server, proxy) = pair();
    let client = Client::connect(&proxy);
    let (mut writer, mut reader) = (client.0.try_clone().expect("a descriptor"), client.0);
    let flood = std::thread::spawn(move || while writer.write_all(b"flood\n").is_ok() {});
    let drain = std::thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
    let mut rounds_that_flowed = 0;
    for round in 0..100 {
        let before = proxy.counts().to_server.bytes;
        eventually(BOUND, "it flows", || (proxy.counts().to_server.bytes > before).then_some(()));
        proxy.block(ToServer);
        let passed = proxy.counts().to_server.bytes;
        std::thread::sleep(Duration::from_micros(300));
        assert_eq!(proxy.counts().to_server.bytes, passed, "round {round}");
        rounds_that_flowed += u32::from(passed > before);
        proxy.unblock(ToServer);
    }
    assert_eq!(rounds_that_flowed, 100, "it was blocked in the middle of a flow");
    assert_eq!(proxy.reset(), 1);
    flood.join().expect("no panic");
    let _ = drain.join().expect("no panic");
}

#[test]
fn a_cut_ends_both_sides_in_order() {
    let (server, proxy) = pair();
    let mut clients = [Client::connect(&proxy), Client::connect(&proxy)];
    clients.iter_mut().for_each(|client| assert_eq!(client.ask("a"), "re:a"));
    assert_eq!(proxy.cut(), 2);
    clients.iter_mut().for_each(|client| client.ends_with(ErrorKind::UnexpectedEof));
    eventually(BOUND, "the server sees two ends", || {
        (server.notes().iter().filter(|n| *n == "end").count() == 2).then_some(())
    });
    assert_eq!(proxy.counts().cut, 2);
    assert_eq!(Client::connect(&proxy).ask("b"), "re:b", "new ones are served");
}

#[test]
fn a_reset_is_a_reset_on_both_sides() {
    let (server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    client.ask("a");
    assert_eq!(proxy.reset(), 1);
    client.ends_with(ErrorKind::ConnectionReset);
    server.wait("reset");
    assert_eq!(proxy.counts().reset, 1);
    assert_eq!(Client::connect(&proxy).ask("b"), "re:b");
    // One side's own reset reaches the other as what it is.
    let client = Client::connect(&proxy);
    eventually(BOUND, "it is open", || {
        (server.notes().iter().filter(|n| *n == "open").count() == 3).then_some(())
    });
    rustix::net::sockopt::set_socket_linger(&client.0, Some(Duration::ZERO)).expect("a socket");
    drop(client);
    eventually(BOUND, "two resets", || {
        (server.notes().iter().filter(|n| *n == "reset").count() == 2).then_some(())
    });
}

#[test]
fn half_open_one_end_knows_and_the_other_does_not() {
    let (server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    client.ask("a");
    assert_eq!(proxy.half_open(Peer::Server), 1);
    server.wait("end");
    client.send("into the void");
    client.hears_nothing();
    assert!(!server.has("into the void"));
    assert_eq!(proxy.cut(), 1, "it is still there to be ended");
    client.ends_with(ErrorKind::UnexpectedEof);

    let mut client = Client::connect(&proxy);
    client.ask("b");
    let ends = || server.notes().iter().filter(|n| *n == "end").count();
    let before = ends();
    assert_eq!(proxy.half_open(Peer::Client), 1);
    client.ends_with(ErrorKind::UnexpectedEof);
    drop(client);
    std::thread::sleep(SILENCE);
    assert_eq!(ends(), before, "the server still believes in it");
    assert_eq!(proxy.counts().half_open, 2);
    drop(proxy);
    eventually(BOUND, "dropped, the proxy lets go", || (ends() > before).then_some(()));
}

#[test]
fn new_connections_are_refused_or_reset_and_old_ones_go_on() {
    let (server, proxy) = pair();
    let mut old = Client::connect(&proxy);
    old.ask("a");
    proxy.refuse();
    for _ in 0..3 {
        let refused = TcpStream::connect(proxy.addr()).expect_err("nobody listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    assert_eq!(old.ask("b"), "re:b");
    proxy.reset_new();
    let mut new = Client::connect(&proxy);
    new.ends_with(ErrorKind::ConnectionReset);
    assert_eq!(proxy.counts().turned_away, 1);
    proxy.accept();
    assert_eq!(Client::connect(&proxy).ask("c"), "re:c");
    proxy.refuse();
    proxy.heal();
    assert_eq!(Client::connect(&proxy).ask("d"), "re:d");
    assert!(server.has("d"));
}

#[test]
fn a_target_that_is_not_there_is_told_by_a_reset() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let proxy = Proxy::start(nobody, Framing::Reads).expect("a port");
    Client::connect(&proxy).ends_with(ErrorKind::ConnectionReset);
    assert_eq!(proxy.counts().unreachable, 1);
    let server = Server::start();
    proxy.retarget(server.addr);
    assert_eq!(Client::connect(&proxy).ask("a"), "re:a");
}

#[test]
fn the_next_request_alone_is_delayed_and_arrives_though_its_client_is_gone() {
    let (server, proxy) = pair();
    let (mut one, mut two) = (Client::connect(&proxy), Client::connect(&proxy));
    one.ask("warm");
    two.ask("warm");
    let rule = proxy.once(When::request().containing("late"), Action::Delay(LATE));
    assert_eq!(two.ask("other"), "re:other", "not what the rule is about");
    assert_eq!(rule.hits(), 0);
    let sent = Instant::now();
    one.send("late");
    rule.wait_hits(1, BOUND);
    drop(one);
    assert_eq!(two.ask("late"), "re:late", "the second is not the next");
    assert!(sent.elapsed() < LATE, "another connection was held up: {:?}", sent.elapsed());
    let lates = || server.notes().iter().filter(|n| *n == "late").count();
    assert_eq!(lates(), 1);
    eventually(BOUND, "the first arrives when it is due", || (lates() == 2).then_some(()));
    assert!(sent.elapsed() >= LATE);
    assert_eq!((rule.hits(), proxy.counts().to_server.delayed), (1, 1));
    assert_eq!(rule.captured(), [b"late\n".to_vec()]);
}

#[test]
fn the_next_reply_alone_is_delayed() {
    let (server, proxy) = pair();
    let (mut one, mut two) = (Client::connect(&proxy), Client::connect(&proxy));
    one.ask("warm");
    two.ask("warm");
    let rule = proxy.once(When::reply().containing("re:late"), Action::Delay(LATE));
    let sent = Instant::now();
    one.send("late");
    rule.wait_hits(1, BOUND);
    assert!(server.has("late"), "it is done, only not answered yet");
    assert_eq!(two.ask("late"), "re:late");
    assert!(sent.elapsed() < LATE, "another connection was held up: {:?}", sent.elapsed());
    assert_eq!(one.ask("behind"), "re:late");
    assert!(sent.elapsed() >= LATE);
    assert_eq!(one.receive().expect("an answer"), "re:behind");
    assert_eq!((rule.hits(), proxy.counts().to_client.delayed), (1, 1));
}

#[test]
fn a_rule_is_for_as_many_as_it_says_and_until_it_is_cancelled() {
    let (_server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    let twice = proxy.times(2, When::request().containing("a"), Action::Watch);
    let all = proxy.always(When::request(), Action::Watch);
    for line in ["a", "b", "a", "a"] {
        client.ask(line);
    }
    assert_eq!((twice.hits(), all.hits()), (2, 4));
    all.cancel();
    client.ask("a");
    assert_eq!(all.hits(), 4);
}

#[test]
fn a_reply_that_never_came_leaves_the_rule_for_the_next() {
    let (server, proxy) = pair();
    let rule = proxy.once(When::reply_to_request().containing("write"), Action::Lose(Ending::Reset));
    let mut client = Client::connect(&proxy);
    // The request is known to the rule, and its connection ends before the reply.
    proxy.latency(ToServer, Duration::from_secs(3600), Duration::ZERO);
    let seen = proxy.once(When::request(), Action::Watch);
    client.send("write");
    seen.wait_hits(1, BOUND);
    assert_eq!(proxy.reset(), 1);
    client.ends_with(ErrorKind::ConnectionReset);
    assert!(!server.has("write"));
    proxy.latency(ToServer, Duration::ZERO, Duration::ZERO);
    assert_eq!(rule.hits(), 0);
    let mut client = Client::connect(&proxy);
    client.send("write");
    client.ends_with(ErrorKind::ConnectionReset);
    assert!(server.has("write"));
    assert_eq!(rule.hits(), 1);
}

#[test]
fn a_held_request_goes_when_it_is_told_and_what_is_behind_it_never_overtakes() {
    let (server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    client.ask("warm");
    let rule = proxy.once(When::request(), Action::Hold);
    client.send("first");
    rule.wait_hits(1, BOUND);
    client.send("second");
    client.hears_nothing();
    assert!(!server.has("first") && !server.has("second"));
    rule.release();
    assert_eq!(client.receive().expect("an answer"), "re:first");
    assert_eq!(client.receive().expect("an answer"), "re:second");
    // A rule that nobody releases is released by the end of all faults.
    let rule = proxy.always(When::reply(), Action::Hold);
    client.send("third");
    rule.wait_hits(1, BOUND);
    server.wait("third");
    client.hears_nothing();
    proxy.heal();
    assert_eq!(client.receive().expect("an answer"), "re:third");
    assert_eq!(client.ask("fourth"), "re:fourth");
    assert_eq!(rule.hits(), 1);
}

#[test]
fn a_lost_reply_is_done_and_never_heard_of() {
    for (ending, heard) in [
        (Ending::Hang, ErrorKind::WouldBlock),
        (Ending::Close, ErrorKind::UnexpectedEof),
        (Ending::Reset, ErrorKind::ConnectionReset),
    ] {
        let (server, proxy) = pair();
        let (mut client, mut other) = (Client::connect(&proxy), Client::connect(&proxy));
        client.ask("warm");
        let rule = proxy.once(When::reply_to_request().containing("write"), Action::Lose(ending));
        assert_eq!(client.ask("read"), "re:read");
        client.send("write");
        server.wait("write");
        let error = client.receive_within(if ending == Ending::Hang { SILENCE } else { BOUND });
        assert!(error.as_ref().is_err_and(|e| e.kind() == heard), "{ending:?}: {error:?}");
        assert_eq!((rule.hits(), proxy.counts().to_client.lost), (1, 1));
        assert_eq!(rule.captured(), [b"re:write\n".to_vec()]);
        assert_eq!(other.ask("read"), "re:read", "other connections know nothing of it");
        if ending == Ending::Hang {
            // Requests still arrive, and no later reply takes the place of the lost one.
            client.send("more");
            server.wait("more");
            client.hears_nothing();
        }
    }
}

#[test]
fn a_lost_request_is_never_done() {
    let (server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    client.ask("warm");
    let rule = proxy.once(When::request().containing("write"), Action::Lose(Ending::Reset));
    client.send("write");
    client.ends_with(ErrorKind::ConnectionReset);
    server.wait("reset");
    assert!(!server.has("write"));
    assert_eq!((rule.hits(), proxy.counts().to_server.lost, proxy.counts().reset), (1, 1, 1));
}

#[test]
fn a_receiver_that_takes_nothing_stops_the_sender() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::start(listener.local_addr().expect("bound"), Framing::Reads).expect("a port");
    let mut client = Client::connect(&proxy);
    let _taken = listener.accept().expect("the proxy connects");
    client.0.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket");
    let block = vec![b'x'; 1 << 20];
    let most = 64;
    // Buffers of the kernel on three sockets, and the proxy's own: far below 64 MB.
    let stopped = (0..most).find(|_| client.0.write_all(&block).is_err());
    assert!(stopped.is_some(), "the proxy took {most} MB that nobody read");
    // A sender that was stopped can be cut off all the same.
    assert_eq!(proxy.cut(), 1);
}

#[test]
fn commands_and_answers_of_redis_are_told_apart_on_one_connection() {
    let server = RedisServer::plain().expect("redis-server");
    let proxy = server.proxy().expect("a port");
    let mut client = Connection::tcp(proxy.addr()).expect("it listens");
    // Three commands in one piece: the second is held, the first is not, and the third waits its turn.
    let rule = proxy.once(When::request().containing("two"), Action::Hold);
    for key in ["one", "two", "three"] {
        client.send(["INCR", key]).expect("the kernel takes it");
    }
    assert_eq!(client.receive().expect("an answer"), Reply::Integer(1));
    rule.wait_hits(1, BOUND);
    assert_eq!(rule.captured(), [encode(["INCR", "two"])]);
    assert_eq!(server.must(["EXISTS", "one", "two", "three"]), Reply::Integer(1));
    rule.release();
    assert_eq!(client.receive().expect("an answer"), Reply::Integer(1));
    assert_eq!(client.receive().expect("an answer"), Reply::Integer(1));

    // The reply to the second of three is lost: the first is heard, the others are done unheard.
    let rule = proxy.once(When::reply_to_request().containing("two"), Action::Lose(Ending::Close));
    for key in ["one", "two", "three"] {
        client.send(["INCR", key]).expect("the kernel takes it");
    }
    assert_eq!(client.receive().expect("an answer"), Reply::Integer(2));
    client.receive().expect_err("it was lost");
    assert_eq!(rule.hits(), 1);
    eventually(BOUND, "the server has done them", || {
        (server.must(["GET", "three"]).text()? == "2").then_some(())
    });
    assert_eq!(server.must(["GET", "two"]).text().as_deref(), Some("2"));
}

#[tokio::test(flavor = "current_thread")]
async fn a_rule_can_be_awaited_on_the_runtime_of_the_client() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (server, proxy) = pair();
    let rule = proxy.once(When::request(), Action::Hold);
    let mut client = tokio::net::TcpStream::connect(proxy.addr()).await.expect("it listens");
    let asking = tokio::spawn(async move {
        client.write_all(b"a\n").await.expect("the kernel takes it");
        let mut answer = [0; 5];
        client.read_exact(&mut answer).await.expect("an answer");
        answer
    });
    tokio::time::timeout(BOUND, rule.hit()).await.expect("it is sent");
    assert!(!server.has("a") && !asking.is_finished());
    rule.release();
    let answer = tokio::time::timeout(BOUND, asking).await.expect("in time").expect("no panic");
    assert_eq!(&answer, b"re:a\n");
}

#[test]
fn a_drop_ends_every_connection_and_frees_the_port() {
    let (server, proxy) = pair();
    let mut client = Client::connect(&proxy);
    client.ask("a");
    proxy.black_hole();
    client.send("held");
    let addr = proxy.addr();
    drop(proxy);
    client.receive().expect_err("the proxy is gone");
    eventually(BOUND, "the server sees the end", || (server.has("end") || server.has("reset")).then_some(()));
    assert!(!server.has("held"));
    TcpListener::bind(addr).expect("nobody listens there");
}
