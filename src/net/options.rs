//! How a connection behaves.

use std::time::Duration;

/// The limits and times of a [`Connection`](crate::net::Connection). Make one, and use it for all.
///
/// ```
/// use cabrank::net::ConnectionOptions;
/// use std::time::Duration;
///
/// let options = ConnectionOptions::new()
///     .water_marks(4 * 1024, 32 * 1024)
///     .idle_timeout(Duration::from_secs(60))
///     .request_timeout(Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ConnectionOptions {
    pub(crate) low: usize,
    pub(crate) high: usize,
    pub(crate) max_output: usize,
    pub(crate) read_chunk: usize,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) linger: Duration,
}

impl Default for ConnectionOptions {
    fn default() -> ConnectionOptions {
        ConnectionOptions::new()
    }
}

impl ConnectionOptions {
    /// Water marks of 16 and 64 KiB, no limit above, reads of 4 KiB, no time-outs, and two seconds to close.
    pub const fn new() -> ConnectionOptions {
        ConnectionOptions {
            low: 16 * 1024,
            high: 64 * 1024,
            max_output: usize::MAX,
            read_chunk: 4 * 1024,
            idle_timeout: None,
            request_timeout: None,
            linger: Duration::from_secs(2),
        }
    }

    /// When `high` bytes wait to be written nothing more is read, until there are `low` or less. A low mark
    /// above the high one is taken for the same.
    pub const fn water_marks(mut self, low: usize, high: usize) -> ConnectionOptions {
        self.high = if high == 0 { 1 } else { high };
        self.low = if low < self.high { low } else { self.high - 1 };
        self
    }

    /// Ends the connection with [`End::Overflow`](crate::net::End::Overflow) when more bytes than that wait
    /// to be written. For protocols that write without being asked to, such as a broadcast.
    pub const fn max_output(mut self, bytes: usize) -> ConnectionOptions {
        self.max_output = bytes;
        self
    }

    /// How much is read at once; at least one byte. The input buffer has this size as soon as something has
    /// come.
    pub const fn read_chunk(mut self, bytes: usize) -> ConnectionOptions {
        self.read_chunk = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// Ends the connection, or asks [`Protocol::idle`](crate::net::Protocol::idle), when the peer has sent
    /// nothing for so long, nor taken enough of what waits to be written for the socket to have room again.
    /// Ends peers that are silent, also if we are not, and peers that do not read.
    pub const fn idle_timeout(mut self, after: Duration) -> ConnectionOptions {
        self.idle_timeout = Some(after);
        self
    }

    /// Ends the connection when a frame has not become complete so long after its first byte, however the rest
    /// trickles in.
    #[doc(alias = "slowloris")]
    pub const fn request_timeout(mut self, after: Duration) -> ConnectionOptions {
        self.request_timeout = Some(after);
        self
    }

    /// How long a connection that is closing waits for a peer that takes nothing: first for it to take what
    /// is to be written, each byte giving it the time anew, then for its end of the stream. What the peer
    /// sends meanwhile is thrown away: unread, it would make the kernel reset the connection, and the peer
    /// might lose our last words.
    ///
    /// With none it is closed after one attempt to write. `SO_LINGER` is not used for this: it makes closing
    /// block.
    #[doc(alias = "SO_LINGER")]
    pub const fn linger(mut self, time: Duration) -> ConnectionOptions {
        self.linger = time;
        self
    }
}
