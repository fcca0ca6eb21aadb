//! What users of a connection implement, and what they can do with it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::handle_set::HandleSet;
use crate::handler::Context;
use crate::net::buffer::Buffer;
use crate::net::framing::BadFrame;
use crate::sys::socket;
use crate::token::HandleId;

/// What is said on a [`Connection`](crate::net::Connection). One thread at a time is in it, so it needs no
/// lock.
///
/// What is put into the [output](Link::output) is written when the method has returned. A panic ends the
/// connection.
pub trait Protocol: Send {
    /// The connection is there. Called once, before anything else: the place to greet.
    fn opened(&mut self, link: &mut Link<'_>) {
        let _ = link;
    }

    /// A frame has come. It is a part of the input buffer, and gone when this returns.
    fn frame(&mut self, frame: &[u8], link: &mut Link<'_>);

    /// Somebody has sent a message to the connection's mailbox, or has called [`HandleSet::notify`]. It may
    /// be called for nothing.
    fn notified(&mut self, link: &mut Link<'_>) {
        let _ = link;
    }

    /// The output had reached its high-water mark, and is down to the low one. Frames come again.
    fn drained(&mut self, link: &mut Link<'_>) {
        let _ = link;
    }

    /// The peer will send no more. What it has sent has been given to [`frame`](Protocol::frame).
    ///
    /// By default this closes the connection when the output has been written. Who has answers yet to come
    /// does nothing here, and calls [`Link::close`] after the last.
    fn finished(&mut self, link: &mut Link<'_>) {
        link.close();
    }

    /// The peer has been silent for the time given to
    /// [`idle_timeout`](crate::net::ConnectionOptions::idle_timeout). By default this ends the connection; to
    /// `Continue` gives it the same time again. `Break` ends it at once: to say goodbye first, put it into the
    /// output, call [`Link::close`], and `Continue`.
    fn idle(&mut self, link: &mut Link<'_>) -> ControlFlow<()> {
        let _ = link;
        ControlFlow::Break(())
    }

    /// The connection has ended; called exactly once, and last. `id` is what it was registered under.
    fn ended(&mut self, id: HandleId, end: End) {
        let _ = (id, end);
    }
}

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// The peer has sent all it had to, and so have we.
    #[error("both sides have finished")]
    Finished,
    /// The peer's end came in the middle of a frame.
    #[error("the peer has ended after {bytes} bytes of a frame")]
    Truncated {
        /// How much of the frame had come.
        bytes: usize,
    },
    /// By [`Link::close`] or [`Link::abort`].
    #[error("closed by this side")]
    Closed,
    /// By [`Link::close`], but the peer has not taken what was to be written.
    #[error("closed by this side, with {bytes} bytes that the peer has not taken")]
    Unsent {
        /// How much was left.
        bytes: usize,
    },
    /// The framing has refused what came.
    #[error(transparent)]
    BadFrame(#[from] BadFrame),
    /// The output has grown beyond [`max_output`](crate::net::ConnectionOptions::max_output).
    #[error(
        "{bytes} bytes were to be written to a peer that does not read, and {limit} are allowed"
    )]
    Overflow {
        /// How much there was.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The peer has neither sent nor taken anything for the time allowed.
    #[error("the peer has been silent for {after:?}")]
    Idle {
        /// The time allowed.
        after: Duration,
    },
    /// The peer has begun a frame, and not completed it in the time allowed.
    #[error("a frame was not complete after {after:?}")]
    SlowFrame {
        /// The time allowed.
        after: Duration,
    },
    /// Reading or writing has failed; a reset by the peer is
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset) or [`BrokenPipe`](io::ErrorKind::BrokenPipe).
    #[error("the connection has failed: {0}")]
    Failed(#[source] io::Error),
    /// Somebody called [`HandleSet::remove`].
    #[error("removed from the handle set")]
    Removed,
    /// The pool was shut down.
    #[error("the pool has been shut down")]
    Shutdown,
    /// The protocol, or the stream, has panicked.
    #[error("the connection's protocol panicked")]
    Panicked,
}

/// The connection, as its protocol sees it.
pub struct Link<'a> {
    pub(crate) output: &'a mut Buffer,
    pub(crate) wishes: &'a mut Wishes,
    pub(crate) high: usize,
    pub(crate) cx: &'a Context<'a>,
}

impl Link<'_> {
    /// Appends bytes to what is to be written.
    pub fn put(&mut self, bytes: &[u8]) {
        self.output.put(bytes);
    }

    /// What is to be written, to append to it in place. After [`finish`](Link::finish) or
    /// [`close`](Link::close) has taken effect what is put here is dropped.
    pub fn output(&mut self) -> &mut Buffer {
        self.output
    }

    /// Ends our half: when the output has been written, the peer is told that nothing more follows. Frames
    /// still come.
    #[doc(alias = "shutdown")]
    pub fn finish(&mut self) {
        self.wishes.leave(Leave::Finish);
    }

    /// Ends the connection when the output has been written. No more frames come. See
    /// [`linger`](crate::net::ConnectionOptions::linger) for how long that may take.
    pub fn close(&mut self) {
        self.wishes.leave(Leave::Close);
    }

    /// Ends the connection at once: what has not been sent is dropped, and the peer sees a reset.
    #[doc(alias = "RST")]
    pub fn abort(&mut self) {
        self.wishes.leave(Leave::Abort);
    }

    /// Gives no more frames, and reads no more, until [`resume`](Link::resume); the time-outs stand still.
    /// For a request that others work on: keep the id and the handle set, and have them call
    /// [`HandleSet::notify`] or send a message when they are done. An end of the connection is not seen
    /// meanwhile.
    pub fn pause(&mut self) {
        self.wishes.paused = true;
    }

    /// Undoes [`pause`](Link::pause).
    pub fn resume(&mut self) {
        self.wishes.paused = false;
    }

    /// Whether the output has reached the high-water mark. Who can wait should put no more then, and go on in
    /// [`drained`](Protocol::drained).
    pub fn is_congested(&self) -> bool {
        self.output.len() >= self.high
    }

    /// The connection's handle.
    pub fn id(&self) -> HandleId {
        self.cx.id()
    }

    /// The handle set, to register, notify or remove others.
    pub fn handles(&self) -> &HandleSet {
        self.cx.handles()
    }

    /// Asks the whole pool to stop.
    pub fn shutdown(&self) {
        self.cx.shutdown();
    }
}

impl fmt::Debug for Link<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("id", &self.id())
            .field("output", &self.output)
            .finish_non_exhaustive()
    }
}

/// What the protocol wants of its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    pub(crate) paused: bool,
    pub(crate) leave: Leave,
}

/// How far the protocol wants to leave; each includes those before it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Leave {
    Stay,
    Finish,
    Close,
    Abort,
}

impl Wishes {
    pub(crate) const NONE: Wishes = Wishes { paused: false, leave: Leave::Stay };

    /// There is no way back.
    fn leave(&mut self, leave: Leave) {
        self.leave = self.leave.max(leave);
    }
}

/// A stream of bytes with a descriptor, non-blocking. One line makes a stream of your own one:
/// `impl Stream for Mine {}`.
pub trait Stream: Read + Write + AsFd + Send {
    /// Whether a read that has not filled its buffer has taken all there was. True of plain sockets; not of
    /// what decodes or keeps bytes back. Saves a system call per request.
    const SHORT_READ_IS_ALL: bool = false;

    /// Tells the peer that nothing more will be sent; reading goes on. By default the socket is shut down
    /// for writing.
    ///
    /// # Errors
    /// The kernel's.
    fn finish(&mut self) -> io::Result<()> {
        socket::shutdown_write(self.as_fd())
    }
}

impl Stream for TcpStream {
    const SHORT_READ_IS_ALL: bool = true;
}

impl Stream for UnixStream {
    const SHORT_READ_IS_ALL: bool = true;
}
