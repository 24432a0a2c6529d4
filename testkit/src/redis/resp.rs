//! Speaking to Redis without a client: enough of its protocol (RESP2) for a test to look and to set up.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a question may take. A server that is frozen is to fail a test, not to hang it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// More than a harness ever asks for.
const BULK_BYTES_MAX: usize = 64 << 20;
/// Arrays in arrays, as `COMMAND INFO` and scripts give them.
const DEPTH_MAX: u32 = 16;

/// What the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A short text, such as `OK`.
    Status(String),
    /// A refusal: the code in capitals and what it says.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Nothing there.
    Null,
    /// Several.
    Array(Vec<Reply>),
}

impl Reply {
    /// Takes a refusal for a failure.
    ///
    /// # Errors
    /// The refusal's text.
    pub fn accepted(self) -> io::Result<Reply> {
        match self {
            Reply::Error(text) => Err(io::Error::other(text)),
            other => Ok(other),
        }
    }

    /// The text of a status, of bytes, or of a refusal.
    pub fn text(&self) -> Option<String> {
        match self {
            Reply::Status(text) | Reply::Error(text) => Some(text.clone()),
            Reply::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Reply::Integer(_) | Reply::Null | Reply::Array(_) => None,
        }
    }

    /// The number.
    pub fn integer(&self) -> Option<i64> {
        if let Reply::Integer(n) = self { Some(*n) } else { None }
    }

    /// The parts of an array; none of anything else.
    pub fn items(&self) -> &[Reply] {
        if let Reply::Array(items) = self { items } else { &[] }
    }

    /// Whether the server refused.
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }
}

trait Stream: Read + Write + Send {
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Stream for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// One connection, blocking, with a time limit on every answer: 5 s unless it is set otherwise.
pub struct Connection(BufReader<Box<dyn Stream>>);

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects by TCP, without TLS.
    ///
    /// # Errors
    /// When nobody answers within the time limit.
    pub fn tcp(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, ANSWER_WITHIN)?;
        stream.set_nodelay(true)?;
        Self::over(Box::new(stream))
    }

    /// Connects by a socket in the file system.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn unix(path: &Path) -> io::Result<Self> {
        Self::over(Box::new(UnixStream::connect(path)?))
    }

    fn over(stream: Box<dyn Stream>) -> io::Result<Self> {
        stream.limit(ANSWER_WITHIN)?;
        Ok(Connection(BufReader::new(stream)))
    }

    /// Sets the time limit of every answer from now on.
    ///
    /// # Errors
    /// When it is zero.
    pub fn answer_within(&mut self, time: Duration) -> io::Result<()> {
        self.0.get_ref().limit(time)
    }

    /// Sends a command and waits for its answer. A refusal is an answer: see [`Reply::accepted`].
    ///
    /// # Errors
    /// When the connection fails, when no answer comes in time (the command may have been carried out
    /// all the same), or when the answer is none.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: impl IntoIterator<Item = A>) -> io::Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    /// Sends a command without waiting for the answer.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: impl IntoIterator<Item = A>) -> io::Result<()> {
        let stream = self.0.get_mut();
        stream.write_all(&encode(args))?;
        stream.flush()
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// As [`Connection::command`].
    pub fn receive(&mut self) -> io::Result<Reply> {
        read_reply(&mut self.0, DEPTH_MAX)
    }
}

/// A command as it goes over the wire.
pub fn encode<A: AsRef<[u8]>>(args: impl IntoIterator<Item = A>) -> Vec<u8> {
    let mut count = 0_usize;
    let mut body = Vec::new();
    for arg in args {
        let arg = arg.as_ref();
        count += 1;
        body.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        body.extend_from_slice(arg);
        body.extend_from_slice(b"\r\n");
    }
    let mut bytes = format!("*{count}\r\n").into_bytes();
    bytes.append(&mut body);
    bytes
}

fn read_reply(from: &mut impl BufRead, depth: u32) -> io::Result<Reply> {
    let bad =
        |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("not an answer of Redis: {what}"));
    let line = read_line(from)?;
    let Some((kind, rest)) = line.split_at_checked(1) else { return Err(bad("an empty line")) };
    let number = || rest.parse::<i64>().map_err(|_| bad(&line));
    Ok(match kind {
        "+" => Reply::Status(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Integer(number()?),
        "$" => match usize::try_from(number()?) {
            Err(_) => Reply::Null,
            Ok(len) if len > BULK_BYTES_MAX => return Err(bad("too long")),
            Ok(len) => {
                let mut bytes = vec![0; len + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(len);
                Reply::Bulk(bytes)
            }
        },
        "*" => match usize::try_from(number()?) {
            Err(_) => Reply::Null,
            Ok(_) if depth == 0 => return Err(bad("nested too deeply")),
            Ok(len) => Reply::Array((0..len).map(|_| read_reply(from, depth - 1)).collect::<Result<_, _>>()?),
        },
        _ => return Err(bad(&line)),
    })
}

fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.by_ref().take(BULK_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\r\n") {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended"));
    }
    line.truncate(line.len() - 2);
    Ok(String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Reply> {
        read_reply(&mut &bytes[..], DEPTH_MAX)
    }

    #[test]
    fn answers_are_read_to_their_end() {
        assert_eq!(read(b"+OK\r\n").expect("legal"), Reply::Status("OK".into()));
        assert_eq!(read(b":-7\r\n").expect("legal").integer(), Some(-7));
        assert_eq!(read(b"$4\r\na\r\nb\r\n").expect("legal"), Reply::Bulk(b"a\r\nb".to_vec()));
        assert_eq!(read(b"$-1\r\n").expect("legal"), Reply::Null);
        let nested = read(b"*2\r\n*1\r\n+a\r\n$1\r\nb\r\n").expect("legal");
        assert_eq!(nested.items()[0].items()[0].text().as_deref(), Some("a"));
        assert_eq!(nested.items()[1].text().as_deref(), Some("b"));
        let refused = read(b"-NOAUTH Authentication required.\r\n").expect("legal");
        assert!(refused.is_error() && refused.accepted().is_err());
    }

    #[test]
    fn what_is_cut_or_foreign_is_an_error() {
        let kind = |bytes: &[u8]| read(bytes).expect_err("must fail").kind();
        assert_eq!(kind(b"+OK"), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"$4\r\nab"), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"HTTP/1.1 400 Bad Request\r\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(b"$99999999999\r\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(&b"*1\r\n".repeat(40)), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_command_is_an_array_of_bytes() {
        assert_eq!(encode(["GET", "a b"]), b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
    }
}
