//! What wrapper and guardian say to each other: one packet a message, over a socketpair that is the
//! guardian's stdin.
//!
//! The command line travels in a memfd beside the start message, and so does the real stdin: neither
//! adds anything to the process list. Sending never blocks; a message that does not fit any more,
//! because the other side is frozen, is an error that the caller may try again.

use std::ffi::OsString;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use leasehold::BootTime;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Longest message.
const BYTES_MAX: usize = 32;

/// Until when the command may run: the first signal at `term_at`, SIGKILL at `kill_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) term_at: BootTime,
    pub(crate) kill_at: BootTime,
}

/// From the wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Start the command; `signal` is the first one at the end. Carries stdin and the memfd.
    Start { times: Times, signal: i32 },
    /// The lease was renewed.
    Times(Times),
    /// Send this signal to the command's process group.
    Forward(i32),
    /// The lease is lost: first signal now, SIGKILL at `kill_at`.
    Terminate { kill_at: BootTime },
    /// SIGKILL now.
    Kill,
}

/// From the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// It cannot do its work: nothing was started.
    Broken { errno: i32 },
    /// The command runs.
    Started { pid: i32 },
    /// The command could not be executed.
    Failed { errno: i32 },
    /// The time that was told is over: the first signal, or SIGKILL, went out.
    TimeOver,
    /// The command exited with this code.
    Exited { code: i32 },
    /// The command was killed by this signal.
    Killed { signal: i32 },
    /// Nobody of its tree is left but `left` that may not be killed, or are hidden.
    Done { left: i32 },
    /// The later times were taken; this is the last moment now.
    Heard { kill_at: BootTime },
}

fn encode(tag: u8, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = vec![tag];
    for number in numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Tag and numbers of a packet; a missing number reads as zero, which no sender of the same binary
/// produces.
fn decode(bytes: &[u8]) -> Option<(u8, impl Fn(usize) -> u64 + '_)> {
    let (&tag, rest) = bytes.split_first()?;
    let number =
        |i: usize| rest.get(i * 8..i * 8 + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    Some((tag, number))
}

/// Process ids, signals and error numbers as the packets carry them.
fn word(number: i32) -> u64 {
    u64::from(number.cast_unsigned())
}

fn small(number: u64) -> i32 {
    (number as u32).cast_signed()
}

impl Order {
    fn to_bytes(self) -> Vec<u8> {
        match self {
            Order::Start { times, signal } => {
                encode(1, &[times.term_at.as_nanos(), times.kill_at.as_nanos(), word(signal)])
            }
            Order::Times(times) => encode(2, &[times.term_at.as_nanos(), times.kill_at.as_nanos()]),
            Order::Forward(signal) => encode(3, &[word(signal)]),
            Order::Terminate { kill_at } => encode(4, &[kill_at.as_nanos()]),
            Order::Kill => encode(5, &[]),
        }
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, number) = decode(bytes)?;
        let time = |i| BootTime::from_nanos(number(i));
        let times = || Times { term_at: time(0), kill_at: time(1) };
        Some(match tag {
            1 => Order::Start { times: times(), signal: small(number(2)) },
            2 => Order::Times(times()),
            3 => Order::Forward(small(number(0))),
            4 => Order::Terminate { kill_at: time(0) },
            5 => Order::Kill,
            _ => return None,
        })
    }
}

impl Report {
    fn to_bytes(self) -> Vec<u8> {
        match self {
            Report::Broken { errno } => encode(1, &[word(errno)]),
            Report::Started { pid } => encode(2, &[word(pid)]),
            Report::Failed { errno } => encode(3, &[word(errno)]),
            Report::TimeOver => encode(4, &[]),
            Report::Exited { code } => encode(5, &[word(code)]),
            Report::Killed { signal } => encode(6, &[word(signal)]),
            Report::Done { left } => encode(7, &[word(left)]),
            Report::Heard { kill_at } => encode(8, &[kill_at.as_nanos()]),
        }
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, number) = decode(bytes)?;
        let first = small(number(0));
        Some(match tag {
            1 => Report::Broken { errno: first },
            2 => Report::Started { pid: first },
            3 => Report::Failed { errno: first },
            4 => Report::TimeOver,
            5 => Report::Exited { code: first },
            6 => Report::Killed { signal: first },
            7 => Report::Done { left: first },
            8 => Report::Heard { kill_at: BootTime::from_nanos(number(0)) },
            _ => return None,
        })
    }
}

/// What came out of the socket.
#[derive(Debug)]
pub(crate) enum Received<T> {
    /// A message, with the descriptors that it carried.
    Message(T, Vec<OwnedFd>),
    /// Nothing for now.
    Nothing,
    /// The other side is gone.
    Closed,
}

/// Sends an order, with descriptors.
pub(crate) fn send_order(
    socket: impl AsFd,
    order: Order,
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let bytes = order.to_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    send(socket, &bytes, &mut control)
}

/// Sends a report.
pub(crate) fn send_report(socket: impl AsFd, report: Report) -> rustix::io::Result<()> {
    send(socket, &report.to_bytes(), &mut SendAncillaryBuffer::default())
}

fn send(
    socket: impl AsFd,
    bytes: &[u8],
    control: &mut SendAncillaryBuffer<'_, '_, '_>,
) -> rustix::io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], control, flags)).map(drop)
}

/// Takes the next order.
pub(crate) fn receive_order(socket: impl AsFd) -> Received<Order> {
    receive(socket, Order::from_bytes)
}

/// Takes the next report.
pub(crate) fn receive_report(socket: impl AsFd) -> Received<Report> {
    receive(socket, Report::from_bytes)
}

fn receive<T>(socket: impl AsFd, parse: impl Fn(&[u8]) -> Option<T>) -> Received<T> {
    let mut bytes = [0u8; BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let result = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
    });
    match result {
        Ok(message) if message.bytes > 0 => {
            let mut descriptors = Vec::new();
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = part {
                    descriptors.extend(rights);
                }
            }
            match parse(&bytes[..message.bytes.min(BYTES_MAX)]) {
                Some(parsed) => Received::Message(parsed, descriptors),
                // Both sides are one binary: a message that cannot be read is a broken peer.
                None => Received::Closed,
            }
        }
        Err(Errno::AGAIN) => Received::Nothing,
        Ok(_) | Err(_) => Received::Closed,
    }
}

/// Puts a command line into a memfd.
pub(crate) fn pack(argv: &[OsString]) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("leasehold-argv", MemfdFlags::CLOEXEC)?);
    let mut bytes = Vec::new();
    for word in argv {
        bytes.extend_from_slice(word.as_bytes());
        bytes.push(0);
    }
    file.write_all(&bytes)?;
    Ok(file)
}

/// Takes a command line out of a memfd.
pub(crate) fn unpack(descriptor: OwnedFd) -> std::io::Result<Vec<OsString>> {
    let mut file = File::from(descriptor);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let words = bytes.split(|&b| b == 0).map(|word| OsString::from_vec(word.to_vec()));
    let mut argv: Vec<OsString> = words.collect();
    // What follows the last terminator.
    argv.pop();
    Ok(argv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn every_message_comes_through_and_garbage_does_not() {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("two");
        let times = Times { term_at: BootTime::from_nanos(7), kill_at: BootTime::MAX };
        let orders = [
            Order::Start { times, signal: 15 },
            Order::Times(times),
            Order::Forward(28),
            Order::Terminate { kill_at: BootTime::from_nanos(u64::MAX - 1) },
            Order::Kill,
        ];
        for order in orders {
            send_order(&a, order, &[]).expect("sent");
            assert!(matches!(receive_order(&b), Received::Message(got, _) if got == order));
        }
        let reports = [
            Report::Broken { errno: 1 },
            Report::Started { pid: i32::MAX },
            Report::Failed { errno: 2 },
            Report::TimeOver,
            Report::Exited { code: -1 },
            Report::Killed { signal: 64 },
            Report::Done { left: 0 },
            Report::Heard { kill_at: BootTime::from_nanos(u64::MAX - 1) },
        ];
        for report in reports {
            send_report(&b, report).expect("sent");
            assert!(matches!(receive_report(&a), Received::Message(got, _) if got == report));
        }
        assert!(matches!(receive_order(&b), Received::Nothing));
        send(&a, &[99, 1, 2], &mut SendAncillaryBuffer::default()).expect("sent");
        assert!(matches!(receive_order(&b), Received::Closed));
        drop(a);
        assert!(matches!(receive_order(&b), Received::Closed));
    }

    #[test]
    fn a_command_line_travels_as_it_is() {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("two");
        let argv: Vec<OsString> =
            vec!["sh".into(), "".into(), OsString::from_vec(vec![0xff, b'\n']), "x".repeat(100_000).into()];
        let file = pack(&argv).expect("memfd");
        let times = Times { term_at: BootTime::ZERO, kill_at: BootTime::ZERO };
        send_order(&a, Order::Start { times, signal: 15 }, &[file.as_fd(), a.as_fd()]).expect("sent");
        let Received::Message(_, mut descriptors) = receive_order(&b) else { panic!("a message") };
        assert_eq!(descriptors.len(), 2);
        assert_eq!(unpack(descriptors.remove(0)).expect("readable"), argv);
    }

    #[test]
    fn a_frozen_peer_blocks_nobody() {
        let (a, _b) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("two");
        let full = (0..1_000_000).find_map(|_| send_order(&a, Order::Kill, &[]).err());
        assert_eq!(full, Some(Errno::AGAIN));
    }
}
