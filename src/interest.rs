//! What a handler asks for, and what it is told.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use crate::error::{Error, Result};
use crate::sys::epoll::Flags;

/// What a handler wants to hear about. Never empty.
///
/// Errors and hang-ups are always reported; the peer's end of stream comes with [`READABLE`]. A handle that is
/// suspended has no interest at all: a peer that leaves then is noticed after it has been resumed.
///
/// ```
/// use cabrank::Interest;
///
/// let both = Interest::READABLE | Interest::WRITABLE;
/// assert_eq!(both.without(Interest::READABLE)?, Interest::WRITABLE);
/// assert!(both.without(both).is_err());
/// # Ok::<(), cabrank::Error>(())
/// ```
///
/// [`READABLE`]: Interest::READABLE
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Interest(u8);

impl Interest {
    /// There is something to read or to accept, or the peer will send no more.
    #[doc(alias = "EPOLLIN")]
    pub const READABLE: Interest = Interest(1);
    /// There is room to write, or a connect has completed.
    #[doc(alias = "EPOLLOUT")]
    pub const WRITABLE: Interest = Interest(2);
    /// Exceptional condition, such as out-of-band data.
    #[doc(alias = "EPOLLPRI")]
    pub const PRIORITY: Interest = Interest(4);

    /// How many bits an interest takes in a packed word.
    pub(crate) const BITS: u32 = 3;

    /// Whether all of `other` is asked for.
    pub const fn contains(self, other: Interest) -> bool {
        self.0 & other.0 == other.0
    }

    /// This interest less another.
    ///
    /// # Errors
    /// [`Error::EmptyInterest`] if nothing is left; to hear nothing, suspend the handle.
    pub const fn without(self, other: Interest) -> Result<Interest> {
        match self.0 & !other.0 {
            0 => Err(Error::EmptyInterest),
            rest => Ok(Interest(rest)),
        }
    }

    pub(crate) fn flags(self) -> Flags {
        let mut flags = Flags::default();
        if self.contains(Interest::READABLE) {
            flags |= Flags::IN | Flags::RDHUP;
        }
        if self.contains(Interest::WRITABLE) {
            flags |= Flags::OUT;
        }
        if self.contains(Interest::PRIORITY) {
            flags |= Flags::PRI;
        }
        flags
    }

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// The interest of bits that came from [`bits`](Interest::bits).
    pub(crate) const fn from_bits(bits: u8) -> Interest {
        debug_assert!(bits != 0 && bits < 1 << Interest::BITS);
        Interest(bits)
    }
}

impl BitOr for Interest {
    type Output = Interest;

    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

impl BitOrAssign for Interest {
    fn bitor_assign(&mut self, other: Interest) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.flags().fmt(f)
    }
}

/// What has happened on a handle.
///
/// A handler reads what it can and returns; it need not distinguish the ways a connection ends,
/// because reading reports them too.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Ready(Flags);

impl Ready {
    /// There is something to read or accept, or the end of the stream to be seen by reading.
    pub fn is_readable(self) -> bool {
        self.any(Flags::IN | Flags::RDHUP | Flags::HUP | Flags::ERR)
    }

    /// There is room to write, or a connect has ended; writing tells how.
    pub fn is_writable(self) -> bool {
        self.any(Flags::OUT | Flags::HUP | Flags::ERR)
    }

    /// Exceptional condition, such as out-of-band data.
    pub fn is_priority(self) -> bool {
        self.any(Flags::PRI)
    }

    /// The peer will send no more.
    pub fn is_read_closed(self) -> bool {
        self.any(Flags::RDHUP | Flags::HUP)
    }

    /// Both directions are closed.
    #[doc(alias = "EPOLLHUP")]
    pub fn is_closed(self) -> bool {
        self.any(Flags::HUP)
    }

    /// An error is pending; reading, writing or `SO_ERROR` fetches it.
    #[doc(alias = "EPOLLERR")]
    pub fn is_error(self) -> bool {
        self.any(Flags::ERR)
    }

    /// The handle's deadline has passed; see [`Context::set_deadline`](crate::Context::set_deadline).
    pub const TIMEOUT: Ready = Ready(TIMEOUT);

    /// Somebody wants the handler called; see [`HandleSet::notify`](crate::HandleSet::notify).
    pub const MESSAGE: Ready = Ready(MESSAGE);

    /// Whether the handle's deadline has passed.
    pub fn is_timeout(self) -> bool {
        self.any(TIMEOUT)
    }

    /// Whether somebody wants the handler called.
    pub fn is_message(self) -> bool {
        self.any(MESSAGE)
    }

    /// The kernel's own bits.
    pub fn flags(self) -> Flags {
        self.0.without(TIMEOUT | MESSAGE)
    }

    fn any(self, flags: Flags) -> bool {
        self.0.bits() & flags.bits() != 0
    }
}

/// What the kernel reports, for handlers that are called by another loop.
impl From<Flags> for Ready {
    fn from(flags: Flags) -> Ready {
        Ready(flags)
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = [(self.is_timeout(), "TIMEOUT"), (self.is_message(), "MESSAGE")];
        let mut separator = "";
        for (_, name) in own.iter().filter(|(is_set, _)| *is_set) {
            write!(f, "{separator}{name}")?;
            separator = " | ";
        }
        if separator.is_empty() || !self.flags().is_empty() {
            write!(f, "{separator}{:?}", self.flags())?;
        }
        Ok(())
    }
}

/// The engine's own additions to what the kernel reports, in bits that it does not use.
pub(crate) const TIMEOUT: Flags = Flags::from_bits(1 << 16);
pub(crate) const MESSAGE: Flags = Flags::from_bits(1 << 17);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_left_is_an_error() {
        let both = Interest::READABLE | Interest::WRITABLE;
        assert_eq!(both.without(Interest::WRITABLE).unwrap(), Interest::READABLE);
        assert!(matches!(both.without(both), Err(Error::EmptyInterest)));
    }

    #[test]
    fn interest_survives_packing() {
        for interest in [Interest::READABLE, Interest::WRITABLE | Interest::PRIORITY] {
            assert_eq!(Interest::from_bits(interest.bits()), interest);
        }
    }

    #[test]
    fn end_of_stream_is_readable() {
        let ready = Ready::from(Flags::RDHUP);
        assert!(ready.is_readable() && ready.is_read_closed() && !ready.is_closed());
        assert!(!ready.is_writable());
    }
}
