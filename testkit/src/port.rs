//! Ports of this machine: one for each server of a test, and who listens on it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::time::Duration;

use crate::process_ids;

/// Below the ports that the kernel hands out by itself (from 32768), also after the 10000 that some
/// servers add for a second port of their own.
const FIRST: u16 = 12_000;
const LAST: u16 = 22_767;
/// Picks before giving up. Ports in use are few; this many misses in a row mean something else.
const PICKS_MAX: u32 = 64;
/// On loopback somebody who listens answers at once; a full backlog is the only thing to wait for.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// A port of 127.0.0.1 that no other test gets while this value lives, also in other processes.
///
/// The reservation is a name in the kernel (an abstract socket), which goes away with the process
/// however it ends. It says nothing about strangers: [`Port::check_free`] looks.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reserved: UnixListener,
}

impl Port {
    /// Reserves a port on which nobody listens.
    ///
    /// # Errors
    /// When none is found.
    pub fn pick() -> io::Result<Self> {
        let mut last = None;
        for _ in 0..PICKS_MAX {
            let random = getrandom::u32().map_err(io::Error::other)?;
            let span = u32::from(LAST - FIRST) + 1;
            // Less than the span, which is a u16.
            let number = FIRST + (random % span) as u16;
            match Self::exactly(number) {
                Ok(port) => return Ok(port),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::from(io::ErrorKind::AddrInUse)))
    }

    /// Reserves this very port.
    ///
    /// # Errors
    /// `AddrInUse` when another test has it, or when somebody listens on it; the message says who.
    pub fn exactly(number: u16) -> io::Result<Self> {
        let name = UnixAddr::from_abstract_name(format!("leasehold-testkit-port-{number}"))?;
        let reserved = UnixListener::bind_addr(&name)
            .map_err(|e| io::Error::new(e.kind(), format!("port {number} belongs to another test: {e}")))?;
        let port = Port { number, _reserved: reserved };
        port.check_free()?;
        Ok(port)
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its address on the loopback interface.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }

    /// Looks that nobody answers and that it can be bound.
    ///
    /// # Errors
    /// `AddrInUse`, with who listens as far as that is to be seen.
    pub fn check_free(&self) -> io::Result<()> {
        let addr = self.addr();
        // Somebody who listens on every address would answer though this one can still be bound.
        let answers = TcpStream::connect_timeout(&addr, ANSWER_WITHIN).is_ok();
        if !answers && TcpListener::bind(addr).is_ok() {
            return Ok(());
        }
        let who = match listeners(self.number).as_slice() {
            [] => "somebody".to_owned(),
            pids => format!("process {pids:?}"),
        };
        Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{who} is on port {} already", self.number)))
    }
}

/// Whether the process `pid` itself listens on TCP port `port`, as the kernel's own tables say.
///
/// Unlike a question to the server, this tells the server that was started from any that answers in its
/// place, whatever it speaks.
pub fn listens(pid: i32, port: u16) -> bool {
    let sockets = listening_sockets(port);
    has_one_of(pid, &sockets)
}

/// The processes that listen on TCP port `port`, as far as they can be seen.
pub fn listeners(port: u16) -> Vec<i32> {
    let sockets = listening_sockets(port);
    if sockets.is_empty() {
        return Vec::new();
    }
    process_ids().into_iter().filter(|&pid| has_one_of(pid, &sockets)).collect()
}

/// The link texts of the sockets in state LISTEN on `port`, as `/proc/PID/fd` shows them.
fn listening_sockets(port: u16) -> Vec<String> {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let tables = [read("/proc/net/tcp"), read("/proc/net/tcp6")];
    tables.iter().flat_map(|t| t.lines()).filter_map(|line| listening_inode(line, port)).collect()
}

/// Reads one line of `/proc/net/tcp`: `sl local_address rem_address st … uid timeout inode …`.
fn listening_inode(line: &str, port: u16) -> Option<String> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, local) = fields.get(1)?.rsplit_once(':')?;
    let mine = u16::from_str_radix(local, 16).ok()? == port && *fields.get(3)? == LISTEN;
    mine.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
}

fn has_one_of(pid: i32, sockets: &[String]) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries
        .flatten()
        .filter_map(|e| std::fs::read_link(e.path()).ok())
        .any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_belongs_to_one_test_and_is_seen_with_its_listener() {
        let port = Port::pick().expect("a port");
        assert!((FIRST..=LAST).contains(&port.number()));
        let again = Port::exactly(port.number()).expect_err("it is taken");
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        let me = std::process::id() as i32;
        assert!(!listens(me, port.number()));

        let listener = TcpListener::bind(port.addr()).expect("free");
        assert!(listens(me, port.number()) && listeners(port.number()).contains(&me));
        assert!(!listens(1, port.number()), "pid 1 has nothing to do with it");
        let error = port.check_free().expect_err("somebody listens");
        assert!(error.to_string().contains(&me.to_string()), "{error}");
        drop(listener);
        port.check_free().expect("nobody listens any more");
    }

    #[test]
    fn a_line_of_the_kernels_table_is_read() {
        let line = "   0: 0100007F:4E8F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2871031 1 0 100 0 0 10 0";
        assert_eq!(listening_inode(line, 0x4E8F).as_deref(), Some("socket:[2871031]"));
        assert_eq!(listening_inode(line, 20112), None);
        assert_eq!(listening_inode(&line.replace(" 0A ", " 01 "), 0x4E8F), None);
        assert_eq!(listening_inode("  sl  local_address rem_address   st", 0x4E8F), None);
    }
}
