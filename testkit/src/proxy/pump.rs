//! One direction of one connection: read, wait, write, in order.
//!
//! 1. The reader takes what the sender sent, cuts it into messages, asks the rules about each, and puts it
//!    into a queue with the time at which it is due. The end of the stream is an item of the queue as well:
//!    whoever closes behind a delayed message does not take it back.
//! 2. The writer takes one item after the other, waits until it is due and let go, until the way is open,
//!    and until the receiver takes it.
//!
//! What can go wrong, and where it is handled:
//! * The receiver takes nothing: the queue is bounded in bytes, the reader stops reading, and the sender's
//!   kernel finds the window closed.
//! * The receiver is gone: what comes is thrown away, so that the sender is not stopped by it, and the other
//!   direction brings the news in its order.
//! * A control call comes between look and write: the look and the write are one step under the lock that
//!   the control call needs, so that nothing gets through after it has returned.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::framing::{Frame, Framer, Framing, Kind};
use super::link::Link;
use super::rule::Rule;
use super::{Action, Direction, Ending, Shared};

/// Bytes in the queue of one direction, beside one message. More than a client has in flight as a rule.
const QUEUED_BYTES_MAX: u32 = 256 << 10;
/// Items in it: small messages are bounded too.
const QUEUED_ITEMS_MAX: usize = 4096;
const READ_BYTES: usize = 16 << 10;
/// At a rate, no more often than this: the runtime's timer has steps of 1 ms.
const DRIP_EVERY_MIN: Duration = Duration::from_millis(10);

/// Which reply belongs to which request, on one connection.
#[derive(Debug, Default)]
pub(super) struct Exchange(Mutex<Ledger>);

#[derive(Debug, Default)]
struct Ledger {
    requests: u64,
    replies: u64,
    awaited: VecDeque<(u64, Rule)>,
}

impl Exchange {
    fn requested(&self, rules: Vec<Rule>) {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = ledger.requests;
        ledger.requests += 1;
        ledger.awaited.extend(rules.into_iter().map(|rule| (number, rule)));
    }

    /// The rules that waited for this reply.
    fn replied(&self, framing: Framing) -> Vec<Rule> {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = ledger.replies;
        ledger.replies += 1;
        let mut found = Vec::new();
        while let Some((wanted, rule)) = ledger.awaited.pop_front() {
            // Without real messages the next thing to come back is the best there is to know.
            if framing != Framing::Reads && wanted != number {
                ledger.awaited.push_front((wanted, rule));
                break;
            }
            found.push(rule);
        }
        found
    }

    /// The rules whose replies will not come.
    pub(super) fn give_up(&self) {
        for (_, rule) in self.0.lock().unwrap_or_else(PoisonError::into_inner).awaited.drain(..) {
            rule.0.unclaim();
        }
    }
}

/// What the writer gets.
struct Item {
    what: Part,
    due: Instant,
    /// How often the link had been healed when it came: a heal lets it go at once.
    heals: u64,
    gate: Option<watch::Receiver<bool>>,
    _room: Option<OwnedSemaphorePermit>,
}

enum Part {
    Message {
        bytes: Vec<u8>,
        lose: Option<Ending>,
    },
    /// The sender has closed its side.
    End,
    /// The sender's side was reset.
    Broken,
}

/// Why a connection ends before both of its streams have.
pub(super) enum Stop {
    /// One end was reset, and so is the other.
    Broken,
    ByRule(Ending),
}

/// Carries everything from one side to the other until the stream has ended.
///
/// Gives an error when the whole connection is to end now.
pub(super) async fn carry(
    shared: &Shared,
    exchange: &Exchange,
    direction: Direction,
    from: &TcpStream,
    to: &TcpStream,
    seed: u64,
) -> Result<(), Stop> {
    let (queue, items) = mpsc::channel(QUEUED_ITEMS_MAX);
    let reader = Reader {
        shared,
        exchange,
        direction,
        framer: Framer::new(shared.framing),
        room: Arc::new(Semaphore::new(QUEUED_BYTES_MAX as usize)),
        queue,
        random: seed,
    };
    let writer =
        Writer { shared, direction, link: shared.link.subscribe(), to, gone: false, next_drip: None };
    let (reading, writing) = (reader.run(from), writer.run(items));
    tokio::pin!(reading, writing);
    tokio::select! {
        // Also when the reader waits for more: the connection is to end.
        written = &mut writing => written,
        _ = &mut reading => writing.await,
    }
}

struct Reader<'a> {
    shared: &'a Shared,
    exchange: &'a Exchange,
    direction: Direction,
    framer: Framer,
    room: Arc<Semaphore>,
    queue: mpsc::Sender<Item>,
    random: u64,
}

/// The writer has gone: the connection is about to end.
struct NobodyWrites;

impl Reader<'_> {
    async fn run(mut self, from: &TcpStream) -> Result<(), NobodyWrites> {
        let mut buffer = vec![0; READ_BYTES];
        let last = loop {
            match read(from, &mut buffer).await {
                Ok(0) => break Part::End,
                Ok(n) => {
                    for frame in self.framer.push(buffer.get(..n).unwrap_or_default()) {
                        self.enqueue(frame).await?;
                    }
                }
                Err(_) => break Part::Broken,
            }
        };
        if let Some(frame) = self.framer.rest() {
            self.enqueue(frame).await?;
        }
        let item = self.timed(last);
        self.queue.send(item).await.map_err(|_| NobodyWrites)
    }

    async fn enqueue(&mut self, frame: Frame) -> Result<(), NobodyWrites> {
        let wanted = u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX).min(QUEUED_BYTES_MAX);
        // It is never closed.
        let room = Arc::clone(&self.room).acquire_many_owned(wanted).await.ok();
        let rule = self.judge(&frame);
        let mut item = self.timed(Part::Message { bytes: frame.bytes, lose: None });
        item._room = room;
        let mut delayed = item.due > Instant::now();
        match rule.map(|rule| (rule.0.action, rule)) {
            Some((Action::Delay(by), _)) => {
                item.due += by;
                delayed = true;
            }
            Some((Action::Hold, rule)) => {
                item.gate = Some(rule.0.gate());
                delayed = true;
            }
            Some((Action::Lose(ending), _)) => {
                if let Part::Message { lose, .. } = &mut item.what {
                    *lose = Some(ending);
                }
            }
            Some((Action::Watch, _)) | None => {}
        }
        if delayed {
            self.shared.count(|counts| counts.way_mut(self.direction).delayed += 1);
        }
        self.queue.send(item).await.map_err(|_| NobodyWrites)
    }

    /// The rule to be done to this message, if any.
    fn judge(&self, frame: &Frame) -> Option<Rule> {
        if frame.kind == Kind::Piece {
            return None;
        }
        let mut doing = None;
        if self.direction == Direction::ToClient && frame.kind == Kind::Message {
            for rule in self.exchange.replied(self.shared.framing) {
                rule.0.hit(&frame.bytes);
                if rule.0.action != Action::Watch {
                    doing.get_or_insert(rule);
                }
            }
        }
        let verdict = self.shared.rules.judge(self.direction, &frame.bytes);
        if self.direction == Direction::ToServer {
            self.exchange.requested(verdict.to_reply);
        }
        doing.or(verdict.doing)
    }

    /// An item with the latency of the link as it is now.
    fn timed(&mut self, what: Part) -> Item {
        let link = *self.shared.link.borrow();
        let way = link.way(self.direction);
        let due = Instant::now() + way.latency + self.part_of(way.jitter);
        Item { what, due, heals: link.heals, gate: None, _room: None }
    }

    /// A time between zero and `most`, by a sequence that is the same in every run.
    fn part_of(&mut self, most: Duration) -> Duration {
        // splitmix64.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let thousandths = u32::try_from((z ^ (z >> 31)) % 1001).unwrap_or(0);
        most * thousandths / 1000
    }
}

struct Writer<'a> {
    shared: &'a Shared,
    direction: Direction,
    link: watch::Receiver<Link>,
    to: &'a TcpStream,
    /// Nothing gets through any more: the receiver is gone, or a message was lost.
    gone: bool,
    /// When the next byte of a limited rate may go.
    next_drip: Option<Instant>,
}

impl Writer<'_> {
    async fn run(mut self, mut items: mpsc::Receiver<Item>) -> Result<(), Stop> {
        while let Some(item) = items.recv().await {
            self.wait_for_turn(&item).await;
            match item.what {
                Part::Message { bytes, lose: None } if !self.gone => self.pass_on(&bytes).await,
                Part::Message { lose, .. } => {
                    self.shared.count(|counts| counts.way_mut(self.direction).lost += 1);
                    match lose {
                        Some(Ending::Hang) => self.gone = true,
                        Some(ending) => return Err(Stop::ByRule(ending)),
                        None => {}
                    }
                }
                Part::End | Part::Broken if self.gone => return Ok(()),
                Part::End => {
                    self.wait_until_open().await;
                    let _ = shutdown(self.to, Shutdown::Write);
                    return Ok(());
                }
                Part::Broken => {
                    self.wait_until_open().await;
                    return Err(Stop::Broken);
                }
            }
        }
        Ok(())
    }

    /// Until it is due and let go, or the link was healed since it came.
    async fn wait_for_turn(&mut self, item: &Item) {
        let let_go = async {
            sleep_until(item.due).await;
            if let Some(mut gate) = item.gate.clone() {
                // A rule that is gone holds nothing back.
                let _ = gate.wait_for(|&released| released).await;
            }
        };
        tokio::select! {
            () = let_go => {}
            () = until(&mut self.link, |link| link.heals > item.heals) => {}
        }
    }

    async fn wait_until_open(&mut self) {
        let direction = self.direction;
        until(&mut self.link, |link| !link.way(direction).blocked).await;
    }

    async fn pass_on(&mut self, bytes: &[u8]) {
        let direction = self.direction;
        if self.link.borrow().way(direction).blocked {
            self.shared.count(|counts| counts.way_mut(direction).blocked += 1);
        }
        let (mut at, mut dripped) = (0, false);
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty() && !self.gone) {
            self.wait_until_open().await;
            let rate = self.pace(&mut dripped).await;
            if self.to.writable().await.is_err() {
                self.lose();
                continue;
            }
            match self.write_some(rest, rate) {
                Ok(n) => at += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.lose(),
            }
        }
        if !self.gone {
            self.shared.count(|counts| {
                let way = counts.way_mut(direction);
                way.messages += 1;
                way.dripped += u64::from(dripped);
            });
        }
    }

    fn lose(&mut self) {
        self.gone = true;
        self.shared.count(|counts| counts.way_mut(self.direction).lost += 1);
    }

    /// Waits for the time of the next piece, where there is a rate, and says how large it may be.
    async fn pace(&mut self, dripped: &mut bool) -> usize {
        let Some(rate) = self.link.borrow().way(self.direction).bytes_per_second else {
            self.next_drip = None;
            return usize::MAX;
        };
        *dripped = true;
        let one = Duration::from_secs(1) / rate.get();
        // Single bytes where there is time for it, else as many as belong to one step of the timer.
        let piece = if one >= DRIP_EVERY_MIN { 1 } else { rate.get() / 100 };
        let due = *self.next_drip.get_or_insert_with(|| Instant::now() + one * piece);
        let mut link = self.link.clone();
        tokio::select! {
            () = sleep_until(due) => self.next_drip = Some(due.max(Instant::now()) + one * piece),
            // Another rate, or none: looked at anew, and nothing is written meanwhile.
            _ = link.changed() => return 0,
        }
        piece as usize
    }

    /// Writes at most `limit` bytes, unless the way has been blocked meanwhile.
    fn write_some(&self, bytes: &[u8], limit: usize) -> io::Result<usize> {
        let piece = bytes.get(..limit.min(bytes.len())).unwrap_or_default();
        // Held over the write: whoever blocks the way waits for it, and nothing is written after that.
        let link = self.shared.link.borrow();
        if link.way(self.direction).blocked || piece.is_empty() {
            return Ok(0);
        }
        let written = self.to.try_write(piece)?;
        self.shared.count(|counts| counts.way_mut(self.direction).bytes += written as u64);
        Ok(written)
    }
}

/// Waits for a link of this kind; for ever when the proxy is gone, and this task with it.
pub(super) async fn until(link: &mut watch::Receiver<Link>, wanted: impl FnMut(&Link) -> bool) {
    let gone = link.wait_for(wanted).await.is_err();
    if gone {
        pending::<()>().await;
    }
}

/// Reads what is there, waiting for it.
pub(super) async fn read(from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

/// Seeds for the two directions of a connection.
pub(super) fn next_seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
