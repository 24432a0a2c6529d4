//! What the link is like just now, and how often its faults were met.

use std::num::NonZeroU32;
use std::time::Duration;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client: requests.
    ToServer,
    /// From the server: replies.
    ToClient,
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Who connected to the proxy.
    Client,
    /// Who the proxy connected to.
    Server,
}

/// One direction of the link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    pub(super) latency: Duration,
    pub(super) jitter: Duration,
    pub(super) bytes_per_second: Option<NonZeroU32>,
    pub(super) blocked: bool,
}

/// The whole link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    pub(super) to_server: Way,
    pub(super) to_client: Way,
    /// How often it was healed: what was held back before goes at once.
    pub(super) heals: u64,
}

impl Link {
    pub(super) fn way(&self, direction: Direction) -> &Way {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    pub(super) fn way_mut(&mut self, direction: Direction) -> &mut Way {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }

    /// Whether a handshake gets through: both ways are needed for one.
    pub(super) fn lets_connect(&self) -> bool {
        !self.to_server.blocked && !self.to_client.blocked
    }
}

/// How often each thing happened since the proxy was started.
///
/// A test that finds nothing wrong looks here whether anything was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Connections accepted, among them those of the next three lines.
    pub connections: u64,
    /// Connections that found the link blocked and were left hanging.
    pub hung: u64,
    /// Connections that were reset on arrival: by [`Proxy::reset_new`](super::Proxy::reset_new), or because
    /// there were too many.
    pub turned_away: u64,
    /// Connections that were reset because the target did not accept them.
    pub unreachable: u64,
    /// Connections closed by [`Proxy::cut`](super::Proxy::cut) or by a rule.
    pub cut: u64,
    /// Connections reset by [`Proxy::reset`](super::Proxy::reset) or by a rule.
    pub reset: u64,
    /// Connections of which one end was ended and the other left.
    pub half_open: u64,
    /// From clients.
    pub to_server: WayCounts,
    /// From the server.
    pub to_client: WayCounts,
}

/// [`Counts`] of one direction, in messages as the [`Framing`](super::Framing) cuts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WayCounts {
    /// Passed on in full.
    pub messages: u64,
    /// Bytes passed on.
    pub bytes: u64,
    /// Given a latency, or held back by a rule.
    pub delayed: u64,
    /// Passed on at a limited rate, at least in part.
    pub dripped: u64,
    /// Found the way blocked when it was their turn.
    pub blocked: u64,
    /// Thrown away: by a rule, or because the receiver was gone.
    pub lost: u64,
}

impl Counts {
    /// One direction of them.
    pub fn way(&self, direction: Direction) -> &WayCounts {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    pub(super) fn way_mut(&mut self, direction: Direction) -> &mut WayCounts {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}
