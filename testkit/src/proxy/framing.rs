//! Where one message ends and the next begins.

/// How the proxy finds requests and replies among the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Framing {
    /// One read from the socket is one message: right for any protocol as long as one side waits for the
    /// other, and the only choice for TLS, where nothing can be read. Pipelined requests may come in one
    /// piece and a large one in several, and the reply to a request is the next thing that comes back.
    Reads,
    /// The protocol of Redis, RESP2 and RESP3: every command and every answer is a message, and the n-th
    /// answer on a connection is the one to its n-th command. Push messages (`>`) are answers to nothing.
    /// On a RESP2 connection that has subscribed, what is published counts as answers: use
    /// [`When::reply`](super::When::reply) there.
    Resp,
}

/// A message this long or longer is passed on in pieces and matched by no rule.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A piece of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole request or reply.
    Message,
    /// Whole, and no answer to any request.
    Push,
    /// Part of what is not understood or too long.
    Piece,
}

/// Cuts one direction of one connection.
#[derive(Debug)]
pub(super) struct Framer {
    framing: Framing,
    held: Vec<u8>,
    /// Something was not understood: the rest is passed on as it comes.
    lost_track: bool,
}

impl Framer {
    pub(super) fn new(framing: Framing) -> Self {
        Framer { framing, held: Vec::new(), lost_track: false }
    }

    /// Takes what was read and returns what is complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Frame> {
        if self.framing == Framing::Reads {
            return vec![Frame { bytes: bytes.to_vec(), kind: Kind::Message }];
        }
        self.held.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while !self.lost_track && !self.held.is_empty() {
            match measure(&self.held) {
                Measured::Complete { len, push } => {
                    let rest = self.held.split_off(len);
                    let bytes = std::mem::replace(&mut self.held, rest);
                    frames.push(Frame { bytes, kind: if push { Kind::Push } else { Kind::Message } });
                }
                Measured::Partial if self.held.len() < MESSAGE_BYTES_MAX => break,
                Measured::Partial | Measured::Unknown => self.lost_track = true,
            }
        }
        if self.lost_track {
            frames.extend(self.rest());
        }
        frames
    }

    /// What is left when the stream has ended.
    pub(super) fn rest(&mut self) -> Option<Frame> {
        let bytes = std::mem::take(&mut self.held);
        (!bytes.is_empty()).then_some(Frame { bytes, kind: Kind::Piece })
    }
}

enum Measured {
    Complete { len: usize, push: bool },
    Partial,
    Unknown,
}

/// How long the value at the start of `bytes` is. One pass over its parts, with a count of those still to
/// come instead of recursion.
fn measure(bytes: &[u8]) -> Measured {
    let (mut at, mut to_come) = (0_usize, 1_u64);
    let push = bytes.first() == Some(&b'>');
    while to_come > 0 {
        let Some(rest) = bytes.get(at..) else { return Measured::Partial };
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
            let plausible =
                rest.iter().take(64).all(|b| b.is_ascii() && !b.is_ascii_control() || *b == b'\r');
            return if plausible { Measured::Partial } else { Measured::Unknown };
        };
        let Some((kind, text)) = rest.get(..end).and_then(<[u8]>::split_first) else {
            return Measured::Unknown;
        };
        at += end + 2;
        to_come -= 1;
        let number = || std::str::from_utf8(text).ok()?.parse::<i64>().ok();
        // A negative length stands for a null value, with nothing after it.
        match (kind, number()) {
            (b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(', _) => {}
            (b'$' | b'=' | b'!', Some(n)) => {
                at = at.saturating_add(usize::try_from(n).map_or(0, |n| n.saturating_add(2)));
            }
            (b'*' | b'~' | b'>', Some(n)) => to_come = to_come.saturating_add(u64::try_from(n).unwrap_or(0)),
            // A map; an attribute is a map before the value that it belongs to.
            (b'%' | b'|', Some(n)) => {
                let pairs = u64::try_from(n).unwrap_or(0);
                to_come =
                    to_come.saturating_add(pairs.saturating_mul(2)).saturating_add(u64::from(*kind == b'|'));
            }
            // A command typed by hand: the line is all of it.
            (b, _) if at == end + 2 && b.is_ascii_alphabetic() => {}
            _ => return Measured::Unknown,
        }
    }
    if at <= bytes.len() { Measured::Complete { len: at, push } } else { Measured::Partial }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(bytes: &[u8], by: usize) -> Vec<Vec<u8>> {
        let mut framer = Framer::new(Framing::Resp);
        let mut found: Vec<Vec<u8>> =
            bytes.chunks(by).flat_map(|chunk| framer.push(chunk)).map(|frame| frame.bytes).collect();
        found.extend(framer.rest().map(|frame| frame.bytes));
        found
    }

    #[test]
    fn every_value_is_one_message_however_it_arrives() {
        let messages: &[&[u8]] = &[
            b"+OK\r\n",
            b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n",
            b":1\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n*1\r\n:1\r\n%1\r\n+a\r\n,1.5\r\n",
            b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
            b"PING\r\n",
            b"_\r\n",
        ];
        let stream = messages.concat();
        for by in [1, 2, 3, 7, stream.len()] {
            assert_eq!(cut(&stream, by), messages, "cut by {by}");
        }
    }

    #[test]
    fn pushes_are_told_apart() {
        let mut framer = Framer::new(Framing::Resp);
        let kinds: Vec<Kind> = framer.push(b">1\r\n+a\r\n+b\r\n").iter().map(|frame| frame.kind).collect();
        assert_eq!(kinds, [Kind::Push, Kind::Message]);
    }

    #[test]
    fn what_is_not_understood_is_passed_on_at_once_and_whole() {
        let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01];
        let mut framer = Framer::new(Framing::Resp);
        assert_eq!(framer.push(&hello), [Frame { bytes: hello.to_vec(), kind: Kind::Piece }]);
        assert_eq!(framer.push(b"+OK\r\n")[0].kind, Kind::Piece, "the track is lost for good");
        assert_eq!(cut(b"*x\r\n+OK\r\n", 1).concat(), b"*x\r\n+OK\r\n");
    }

    #[test]
    fn a_huge_message_is_passed_on_in_pieces() {
        let mut framer = Framer::new(Framing::Resp);
        let head = format!("${}\r\n", 4 * MESSAGE_BYTES_MAX);
        assert!(framer.push(head.as_bytes()).is_empty());
        let frames = framer.push(&vec![b'x'; MESSAGE_BYTES_MAX]);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].bytes.len(), head.len() + MESSAGE_BYTES_MAX);
    }

    #[test]
    fn reads_are_messages_of_their_own() {
        let mut framer = Framer::new(Framing::Reads);
        assert_eq!(framer.push(b"+OK\r\n+O")[0].bytes, b"+OK\r\n+O");
        assert_eq!(framer.rest(), None);
    }
}
