//! Where a frame ends and the next begins.

use std::ops::Range;

use crate::net::buffer::Buffer;

/// Finds the frames in a stream of bytes.
///
/// ```
/// use cabrank::net::{BadFrame, Found, Framing};
///
/// /// One byte that says how many follow.
/// struct Short;
///
/// impl Framing for Short {
///     fn find(&mut self, input: &[u8]) -> Result<Found, BadFrame> {
///         let size = 1 + input.first().map_or(0, |&count| usize::from(count));
///         if input.len() < size || input.is_empty() {
///             return Ok(Found::Incomplete { size });
///         }
///         Ok(Found::Frame { content: 1..size, size })
///     }
///
///     fn longest(&self) -> usize {
///         256
///     }
/// }
/// ```
pub trait Framing {
    /// Looks at the beginning of what has come and not been consumed. Called with the same bytes and more
    /// until it has found a frame, then with what follows that one.
    ///
    /// # Errors
    /// [`BadFrame`], which ends the connection.
    fn find(&mut self, input: &[u8]) -> Result<Found, BadFrame>;

    /// How many bytes the longest frame takes, all included. A connection that has received as many without
    /// there being a frame among them is ended, so this bounds its memory.
    fn longest(&self) -> usize;
}

/// What a [`Framing`] has found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// A frame.
    Frame {
        /// Which of the bytes the protocol is given.
        content: Range<usize>,
        /// How many bytes the frame takes from the input, more than none.
        size: usize,
    },
    /// The frame is not all there.
    Incomplete {
        /// How many bytes it will have, at least, as far as that can be told.
        size: usize,
    },
}

/// What came cannot be a frame.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// It is longer than the framing allows.
    #[error("a frame is longer than the {limit} bytes that are allowed")]
    TooLong {
        /// The limit that was given to the framing.
        limit: usize,
    },
    /// It is not as it should be; this says why.
    #[error("a frame is malformed: {0}")]
    Malformed(&'static str),
}

/// Lines that end with `\n` or `\r\n`, which the protocol does not get to see.
#[derive(Clone, Debug)]
pub struct Lines {
    longest: usize,
    /// How many bytes have been looked at: a line that comes byte by byte is searched once.
    searched: usize,
}

impl Lines {
    /// Lines of at most so many bytes, their end not counted.
    pub const fn new(longest: usize) -> Lines {
        Lines { longest, searched: 0 }
    }
}

impl Framing for Lines {
    fn find(&mut self, input: &[u8]) -> Result<Found, BadFrame> {
        let too_long = BadFrame::TooLong { limit: self.longest };
        let searched = self.searched.min(input.len());
        match input[searched..].iter().position(|&byte| byte == b'\n') {
            Some(at) => {
                self.searched = 0;
                let end = searched + at;
                let content = end - usize::from(input[..end].ends_with(b"\r"));
                if content > self.longest {
                    return Err(too_long);
                }
                Ok(Found::Frame { content: 0..content, size: end + 1 })
            }
            None => {
                self.searched = input.len();
                let content = input.len() - usize::from(input.ends_with(b"\r"));
                if content > self.longest {
                    return Err(too_long);
                }
                Ok(Found::Incomplete { size: input.len() + 1 })
            }
        }
    }

    fn longest(&self) -> usize {
        self.longest.saturating_add(2)
    }
}

/// Frames that begin with their length, in four bytes, the highest first.
#[derive(Clone, Debug)]
pub struct LengthPrefix {
    longest: usize,
}

impl LengthPrefix {
    /// Frames of at most so many bytes, the length itself not counted.
    pub const fn new(longest: usize) -> LengthPrefix {
        LengthPrefix { longest }
    }

    /// Appends a frame.
    ///
    /// # Panics
    /// If it has 4 GiB or more.
    pub fn put(output: &mut Buffer, content: &[u8]) {
        let length =
            u32::try_from(content.len()).expect("the length of a frame fits in four bytes");
        output.put(&length.to_be_bytes());
        output.put(content);
    }
}

impl Framing for LengthPrefix {
    fn find(&mut self, input: &[u8]) -> Result<Found, BadFrame> {
        let Some((length, content)) = input.split_first_chunk() else {
            return Ok(Found::Incomplete { size: PREFIX });
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.longest {
            return Err(BadFrame::TooLong { limit: self.longest });
        }
        let size = PREFIX.saturating_add(length);
        if content.len() < length {
            return Ok(Found::Incomplete { size });
        }
        Ok(Found::Frame { content: PREFIX..size, size })
    }

    fn longest(&self) -> usize {
        self.longest.saturating_add(PREFIX)
    }
}

/// No frames: the protocol is given whatever has come, as it comes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unframed;

impl Framing for Unframed {
    fn find(&mut self, input: &[u8]) -> Result<Found, BadFrame> {
        match input.len() {
            0 => Ok(Found::Incomplete { size: 1 }),
            size => Ok(Found::Frame { content: 0..size, size }),
        }
    }

    fn longest(&self) -> usize {
        1
    }
}

/// The bytes of a length.
const PREFIX: usize = 4;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    fn frame(content: Range<usize>, size: usize) -> Result<Found, BadFrame> {
        Ok(Found::Frame { content, size })
    }

    #[test]
    fn lines_end_in_either_way() {
        let mut lines = Lines::new(5);
        assert_eq!(lines.find(b"hello\nworld"), frame(0..5, 6));
        assert_eq!(lines.find(b"world\r\n"), frame(0..5, 7));
        assert_eq!(lines.find(b"\n"), frame(0..0, 1));
        assert_eq!(lines.find(b"\r\n"), frame(0..0, 2));
        // One in the middle is as good as any other byte.
        assert_eq!(lines.find(b"a\rb\n"), frame(0..3, 4));
    }

    #[test]
    fn a_line_may_have_its_limit_and_no_more_however_it_comes() {
        for (text, good) in [
            (&b"12345\n"[..], true),
            (b"12345\r\n", true),
            (b"123456\n", false),
            (b"123456\r\n", false),
            (b"12345\r\r\n", false),
        ] {
            let whole = Lines::new(5).find(text);
            assert_eq!(whole.is_ok(), good, "{}", text.escape_ascii());
            let mut lines = Lines::new(5);
            let mut found = Ok(Found::Incomplete { size: 1 });
            for end in 1..=text.len() {
                found = lines.find(&text[..end]);
                assert!(end <= lines.longest() || found.is_err());
                if !matches!(found, Ok(Found::Incomplete { .. })) {
                    break;
                }
            }
            assert_eq!(found.is_ok(), good, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn lengths_are_checked_before_their_bytes_have_come() {
        let mut framing = LengthPrefix::new(10);
        assert_eq!(framing.find(&[0, 0, 0]), Ok(Found::Incomplete { size: 4 }));
        assert_eq!(framing.find(&[0, 0, 0, 10]), Ok(Found::Incomplete { size: 14 }));
        assert_eq!(framing.find(&[0, 0, 0, 0]), frame(4..4, 4));
        assert_eq!(framing.find(&[0, 0, 0, 11]), Err(BadFrame::TooLong { limit: 10 }));
        assert_eq!(framing.find(&[0xff; 4]), Err(BadFrame::TooLong { limit: 10 }));
        let mut buffer = Buffer::new();
        LengthPrefix::put(&mut buffer, b"abc");
        assert_eq!(framing.find(buffer.filled()), frame(4..7, 7));
    }
}
