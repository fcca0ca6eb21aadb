//! Names of registrations: what travels through the kernel, and what users hold.

use std::fmt;

/// A slot of the demultiplexing table and the generation of its tenant, packed into the 64 bits
/// that epoll gives back with each event.
///
/// ```text
///   63          32 31           0
///  +--------------+--------------+
///  |  generation  |     slot     |
///  +--------------+--------------+
/// ```
///
/// A slot's generation changes whenever its tenant leaves, so an event that was fetched before and
/// is looked up afterwards finds a stranger's generation and is dropped (I7). A slot that has used up
/// its 2^30 generations gets no more tenants, so a name never comes to mean somebody else.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub(crate) struct Token {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl Token {
    /// The data of the pool's own wake-up descriptor. No slot has this number.
    pub(crate) const WAKER: u64 = u64::MAX;
    /// The data of the pool's alarm.
    pub(crate) const ALARM: u64 = u64::MAX - 1;
    /// The data of an event that stands for a posted closure.
    pub(crate) const POST: u64 = u64::MAX - 2;

    pub(crate) fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    pub(crate) fn unpack(data: u64) -> Token {
        Token { slot: data as u32, generation: (data >> 32) as u32 }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.slot, self.generation)
    }
}

/// The name of a registered handle. A copyable value that never comes to mean another handle: once
/// the handle is gone, every use of its id is answered with
/// [`Error::UnknownHandle`](crate::Error::UnknownHandle).
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct HandleId {
    pub(crate) token: Token,
    /// Which handle set it belongs to; other sets refuse it.
    pub(crate) set: u32,
}

impl fmt::Debug for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleId({}/{:?})", self.set, self.token)
    }
}

impl fmt::Display for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handle {}/{:?}", self.set, self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        let token = Token { slot: 0x1234_5678, generation: 0x9abc_def0 };
        assert_eq!(Token::unpack(token.pack()), token);
        for own in [Token::WAKER, Token::ALARM, Token::POST] {
            assert_ne!(token.pack(), own);
            assert!(
                Token::unpack(own).slot as usize > crate::table::MOST,
                "no slot has this number"
            );
        }
    }
}
