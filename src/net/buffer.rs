//! Bytes on their way.

use std::fmt;
use std::io;

/// Bytes that come in at one end and leave at the other, without being copied in between.
///
/// It allocates when it has to hold more than ever before, and keeps what it has.
///
/// ```
/// use cabrank::net::Buffer;
/// use std::io::Write;
///
/// let mut buffer = Buffer::new();
/// write!(buffer, "{} bottles", 99)?;
/// buffer.spare(3)[..3].copy_from_slice(b"...");
/// buffer.commit(3);
/// assert_eq!(buffer.filled(), b"99 bottles...");
/// buffer.consume(3);
/// assert_eq!(buffer.filled(), b"bottles...");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// What is there is from `start` to `end`.
    start: usize,
    end: usize,
}

impl Buffer {
    /// An empty one, which has not allocated.
    pub const fn new() -> Buffer {
        Buffer { bytes: Vec::new(), start: 0, end: 0 }
    }

    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.spare(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.commit(bytes.len());
    }

    /// Room behind what is there, at least so much. What has been written to it is kept by
    /// [`commit`](Buffer::commit).
    pub fn spare(&mut self, at_least: usize) -> &mut [u8] {
        let missing = at_least.saturating_sub(self.room());
        if missing > 0 {
            // Moving what is there pays when at least as much has left: then each byte is moved once on
            // average, however it comes and goes.
            if missing <= self.start && self.len() <= self.start {
                self.move_to_front();
            } else {
                let twice = self.bytes.len() * 2;
                self.bytes.resize(twice.max(self.end + at_least), 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// Keeps the first `bytes` of what [`spare`](Buffer::spare) has given.
    ///
    /// # Panics
    /// If there was less room than that.
    pub fn commit(&mut self, bytes: usize) {
        assert!(
            bytes <= self.bytes.len() - self.end,
            "more bytes are committed than there was room"
        );
        self.end += bytes;
    }

    /// Drops the first `bytes`.
    ///
    /// # Panics
    /// If there are less.
    pub fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "more bytes are consumed than there are");
        self.start += bytes;
        if self.start == self.end {
            self.clear();
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// What is there.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// How much is there.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How much it has allocated.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// How much room there is behind what is there, without making any.
    pub(crate) fn room(&self) -> usize {
        self.bytes.len() - self.end
    }

    pub(crate) fn move_to_front(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.len());
        }
    }
}

/// Appends; never fails.
impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_they_came_and_room_is_used_again() {
        let mut buffer = Buffer::new();
        let (mut put, mut taken) = (0_u32, 0_u32);
        for round in 0..10_000_u32 {
            for _ in 0..round % 7 {
                buffer.put(&put.to_le_bytes());
                put += 1;
            }
            while buffer.len() > 40 {
                assert_eq!(buffer.filled()[..4], taken.to_le_bytes());
                buffer.consume(4);
                taken += 1;
            }
        }
        assert!(buffer.capacity() <= 512, "{buffer:?}");
    }

    #[test]
    fn moving_to_the_front_keeps_what_is_there() {
        let mut buffer = Buffer::new();
        buffer.put(b"abcdef");
        buffer.consume(2);
        buffer.move_to_front();
        assert_eq!(buffer.filled(), b"cdef");
        buffer.consume(4);
        assert!(buffer.is_empty());
    }

    #[test]
    #[should_panic(expected = "consumed")]
    fn what_is_not_there_cannot_be_consumed() {
        Buffer::new().consume(1);
    }
}
