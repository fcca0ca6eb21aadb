//! A connection with buffers: frames in, bytes out, time-outs, and an end that is told once.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::error::{Rejected, Result};
use crate::handle_set::{HandleSet, Registration};
use crate::handler::{Context, Handler, Next, Reason};
use crate::interest::{Interest, Ready};
use crate::net::buffer::Buffer;
use crate::net::framing::{BadFrame, Found, Framing};
use crate::net::options::ConnectionOptions;
use crate::net::protocol::{End, Leave, Link, Protocol, Stream};
use crate::net::state::{Over, State};
use crate::sync::now;
use crate::sys::socket;
use crate::token::HandleId;

/// A stream that is read frame by frame, and written from a queue.
///
/// - **Input** is read into one buffer, and the [`Protocol`] is given slices of it. The buffer grows with what
///   has really come, to twice the longest frame at most.
/// - **Output** is put into one buffer and written once per turn. Above the high-water mark nothing is read
///   and no frame delivered, so a peer that does not read its answers gets no more of them.
/// - **Half-close**: when the peer has finished, what is to be written is written first. See also
///   [`Link::finish`].
/// - **Time-outs** for silence and for frames that do not get complete cost no system call per request.
/// - It is **closed** once, by whichever comes first, and [`Protocol::ended`] is told why.
///
/// After warm-up a request allocates nothing. Deactivation by one-shot and by edge look the same.
///
/// The connection suspends and resumes itself, and its time-outs are its handle's deadline: use
/// [`Link::pause`], not [`HandleSet::suspend`], and leave [`HandleSet::set_deadline`] and
/// [`clear_deadline`](HandleSet::clear_deadline) alone.
///
/// When the pool stops, what has not been written by then is not, and the peer sees the end of the stream. Who
/// owes answers stops accepting, lets each connection [close](Link::close) by a message, and shuts down when the
/// last has ended; see docs/recipes.md.
///
/// ```
/// use cabrank::net::{Connection, Lines, Link, Protocol};
/// use cabrank::Pool;
/// use std::io::{BufRead, BufReader, Write};
/// use std::os::unix::net::UnixStream;
///
/// struct Shout;
///
/// impl Protocol for Shout {
///     fn frame(&mut self, line: &[u8], link: &mut Link<'_>) {
///         // Written in place: no copy, and no allocation once the buffer is warm.
///         let room = link.output().spare(line.len() + 1);
///         room[..line.len()].copy_from_slice(line);
///         room[..line.len()].make_ascii_uppercase();
///         room[line.len()] = b'\n';
///         link.output().commit(line.len() + 1);
///     }
/// }
///
/// let pool = Pool::builder().threads(2).build()?;
/// let (here, mut there) = UnixStream::pair()?;
/// here.set_nonblocking(true)?;
/// Connection::new(here, Lines::new(1024), Shout).register(pool.handles())?;
///
/// there.write_all(b"hello\n")?;
/// let mut answer = String::new();
/// BufReader::new(there).read_line(&mut answer)?;
/// assert_eq!(answer, "HELLO\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Connection<S, F, P> {
    // In this order: the protocol may hold what stands for the stream, such as a permit.
    stream: S,
    framing: F,
    input: Buffer,
    output: Buffer,
    options: ConnectionOptions,
    state: State,
    protocol: P,
}

/// How to register a [`Connection`], for those who do it themselves: it is called at once, and decides
/// for itself from then on. With another interest its time-outs would begin with the first event.
///
/// ```
/// use cabrank::net::{Connection, Lines, Link, OPENING, Protocol};
/// use cabrank::{Capacity, Inbox, Pool, WhenFull};
/// # use std::os::unix::net::UnixStream;
///
/// /// Passes on what others have to say.
/// struct Listener {
///     inbox: Inbox<String>,
/// }
///
/// impl Listener {
///     fn pass_on(&mut self, link: &mut Link<'_>) {
///         // What finds no room stays in the inbox, whose capacity the senders feel.
///         while !link.is_congested() {
///             let Some(line) = self.inbox.take() else { return };
///             link.put(line.as_bytes());
///         }
///     }
/// }
///
/// impl Protocol for Listener {
///     fn notified(&mut self, link: &mut Link<'_>) {
///         self.pass_on(link);
///     }
///
///     fn drained(&mut self, link: &mut Link<'_>) {
///         self.pass_on(link);
///     }
///
///     fn frame(&mut self, _line: &[u8], _link: &mut Link<'_>) {}
/// }
///
/// let pool = Pool::builder().threads(2).build()?;
/// # let (stream, mut peer) = UnixStream::pair()?;
/// # stream.set_nonblocking(true)?;
/// let make = |inbox| Connection::new(stream, Lines::new(1024), Listener { inbox });
/// let capacity = Capacity::bounded(100, WhenFull::Refuse);
/// let mailbox = pool.handles().register_with_mailbox(capacity, make, OPENING)?;
/// mailbox.send("hello\n".to_string())?;
/// # let mut said = [0; 6];
/// # std::io::Read::read_exact(&mut peer, &mut said)?;
/// # assert_eq!(&said, b"hello\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const OPENING: Registration = Registration::new(READ_AND_WRITE);

impl<S, F, P> Connection<S, F, P>
where
    S: Stream,
    F: Framing + Send,
    P: Protocol,
{
    /// A connection with the default options. The stream must be non-blocking.
    pub fn new(stream: S, framing: F, protocol: P) -> Connection<S, F, P> {
        Connection::with_options(stream, framing, protocol, ConnectionOptions::new())
    }

    /// A connection with the given options. The stream must be non-blocking.
    pub fn with_options(
        stream: S,
        framing: F,
        protocol: P,
        options: ConnectionOptions,
    ) -> Connection<S, F, P> {
        Connection {
            stream,
            framing,
            input: Buffer::new(),
            output: Buffer::new(),
            options,
            state: State::new(),
            protocol,
        }
    }

    /// Registers it; its protocol is told that it is [opened](Protocol::opened).
    ///
    /// # Errors
    /// As [`HandleSet::register`], with the connection.
    #[expect(clippy::result_large_err, reason = "it is given back as it came, not copied to a box")]
    pub fn register(self, handles: &HandleSet) -> Result<HandleId, Rejected<Connection<S, F, P>>>
    where
        S: 'static,
        F: 'static,
        P: 'static,
    {
        handles.register(self, OPENING)
    }

    /// The stream and the protocol, for a registration that was refused.
    pub fn into_parts(self) -> (S, P) {
        (self.stream, self.protocol)
    }

    /// One turn: what has come, what is to go, and what to wait for.
    fn turn(&mut self, ready: Ready, cx: &mut Context<'_>) -> Result<Next, End> {
        let now = now();
        self.state.note(ready, now);
        if !self.state.opened {
            self.state.opened = true;
            self.state.progress = now;
            self.tell(cx, |protocol, link| protocol.opened(link))?;
        }
        if ready.is_message() {
            let was_paused = self.state.wishes.paused;
            self.tell(cx, |protocol, link| protocol.notified(link))?;
            if was_paused {
                // It was not the peer that took the time.
                self.state.progress = now;
                self.state.frame_began = None;
            }
        }
        // What has come in time may not have been announced yet. To read for it would be to have a buffer
        // for every peer that is silent.
        self.state.readable |= ready.is_timeout() && socket::is_readable(&self.stream);
        let mut interrupted = self.exchange(now, cx)?;
        if ready.is_timeout() && self.check_times(now, cx)? {
            interrupted |= self.exchange(now, cx)?;
        }
        if interrupted {
            // There may be frames in the buffer, of which the kernel knows nothing.
            let _ = cx.handles().notify(cx.id());
        }
        self.state.note_closing(now);
        self.look_for_the_end()?;
        match self.state.times(&self.options, self.output.len()).first() {
            Some(due) => cx.set_deadline(Duration::from_nanos(due.saturating_sub(now))),
            None => cx.clear_deadline(),
        }
        Ok(self.verdict())
    }

    /// Reads, delivers and writes until nothing more can be done, or it has been enough for one turn.
    /// Returns whether there may be more.
    fn exchange(&mut self, now: u64, cx: &Context<'_>) -> Result<bool, End> {
        let mut left = BYTES_PER_TURN;
        loop {
            let missing = self.deliver(now, cx)?;
            left = left.saturating_sub(self.flush()?);
            if self.state.congested && self.output.len() <= self.options.low {
                self.state.congested = false;
                self.tell(cx, |protocol, link| protocol.drained(link))?;
            } else if self.state.wants_input() && self.state.readable {
                left = left.saturating_sub(self.read(missing, now, cx)?);
            } else {
                return Ok(false);
            }
            if left == 0 || cx.handles().is_asked(cx.id()) {
                // What was put into the output just now goes first.
                self.flush()?;
                return Ok(true);
            }
        }
    }

    /// Gives the protocol the frames that have come; how many bytes are missing for the next.
    fn deliver(&mut self, now: u64, cx: &Context<'_>) -> Result<usize, End> {
        while self.state.wants_frames() && !self.input.is_empty() {
            let input = self.input.filled();
            let (content, size) = match self.framing.find(input)? {
                Found::Frame { content, size } => (content, size),
                Found::Incomplete { size } => {
                    let limit = self.framing.longest();
                    if size > limit || input.len() >= limit {
                        return Err(BadFrame::TooLong { limit }.into());
                    }
                    self.state.frame_began.get_or_insert(now);
                    return Ok(size.saturating_sub(self.input.len()));
                }
            };
            let frame = input.get(content).filter(|_| size > 0 && size <= input.len());
            let Some(frame) = frame else {
                return Err(BadFrame::Malformed("the framing has found what is not there").into());
            };
            let mut link = Link {
                output: &mut self.output,
                wishes: &mut self.state.wishes,
                high: self.options.high,
                cx,
            };
            self.protocol.frame(frame, &mut link);
            self.input.consume(size);
            self.state.frame_began = None;
            self.after_protocol()?;
        }
        if self.state.wishes.leave >= Leave::Close {
            // Nobody is to see it.
            self.input.clear();
        }
        Ok(0)
    }

    /// Reads once; how much there was.
    fn read(&mut self, missing: usize, now: u64, cx: &Context<'_>) -> Result<usize, End> {
        // As much again as there is at most: a peer that announces a long frame gets no memory for it
        // before it has sent as much. And a part of the chunk is enough to go on with: a frame that comes
        // byte by byte must not make the buffer grow.
        let chunk = self.options.read_chunk;
        let room = match self.input.capacity() {
            0 => chunk,
            _ => missing.min(self.input.len()).max(chunk.div_ceil(4)),
        };
        if self.input.len() < chunk || self.input.room() < room {
            self.input.move_to_front();
        }
        let room = self.input.spare(room);
        let asked = room.len();
        match self.stream.read(room) {
            Ok(0) => {
                self.state.peer_finished = true;
                self.state.readable = false;
                self.state.truncated = self.input.len();
                self.input.clear();
                self.state.frame_began = None;
                if self.state.wishes.leave < Leave::Close {
                    self.tell(cx, |protocol, link| protocol.finished(link))?;
                    self.state.finished_by_peer = true;
                }
                Ok(0)
            }
            Ok(bytes) => {
                self.input.commit(bytes);
                if self.state.wishes.leave < Leave::Close {
                    self.state.progress = now;
                }
                // An end that has been announced must be seen, so it is read for.
                if bytes < asked && S::SHORT_READ_IS_ALL && !self.state.hung_up {
                    self.state.readable = false;
                }
                Ok(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.state.readable = false;
                Ok(0)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(End::Failed(error)),
        }
    }

    /// Writes what there is to write, as far as it goes; how much that was.
    fn flush(&mut self) -> Result<usize, End> {
        let mut written = 0;
        if self.state.shut {
            self.output.clear();
        }
        while !self.output.is_empty() && self.state.writable {
            match self.stream.write(self.output.filled()) {
                Ok(0) => return Err(End::Failed(io::ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    self.output.consume(bytes);
                    written += bytes;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.state.writable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(End::Failed(error)),
            }
        }
        let leaves = self.state.wishes.leave >= Leave::Finish;
        if leaves && self.output.is_empty() && !self.state.shut {
            self.state.shut = true;
            // If the peer has finished too, closing says it all.
            if !self.state.peer_finished {
                self.stream.finish().map_err(End::Failed)?;
            }
        }
        Ok(written)
    }

    /// Calls the protocol, and looks at what it has done.
    fn tell<R>(
        &mut self,
        cx: &Context<'_>,
        call: impl FnOnce(&mut P, &mut Link<'_>) -> R,
    ) -> Result<R, End> {
        let mut link = Link {
            output: &mut self.output,
            wishes: &mut self.state.wishes,
            high: self.options.high,
            cx,
        };
        let answer = call(&mut self.protocol, &mut link);
        self.after_protocol()?;
        Ok(answer)
    }

    fn after_protocol(&mut self) -> Result<(), End> {
        if self.state.wishes.leave == Leave::Abort {
            // One that cannot be reset is closed.
            let _ = socket::reset_on_close(&self.stream);
            return Err(End::Closed);
        }
        self.state.congested |= self.output.len() >= self.options.high;
        Ok(())
    }

    /// Whether everything has been said, or too much.
    fn look_for_the_end(&mut self) -> Result<(), End> {
        let (bytes, limit) = (self.output.len(), self.options.max_output);
        if bytes > limit {
            return Err(End::Overflow { bytes, limit });
        }
        let both = self.state.peer_finished && self.state.shut;
        let at_once = self.state.wishes.leave >= Leave::Close && self.options.linger.is_zero();
        if both || at_once { Err(self.last_word()) } else { Ok(()) }
    }

    fn last_word(&self) -> End {
        match (self.output.len(), self.state.truncated) {
            (0, 0) if self.state.finished_by_peer => End::Finished,
            (0, bytes) if self.state.finished_by_peer => End::Truncated { bytes },
            (0, _) => End::Closed,
            (bytes, _) => End::Unsent { bytes },
        }
    }

    /// A time-out may be over. Returns whether the protocol was asked, and wants to go on.
    fn check_times(&mut self, now: u64, cx: &Context<'_>) -> Result<bool, End> {
        match self.state.times(&self.options, self.output.len()).over(now) {
            None => Ok(false),
            Some(Over::Closing) => Err(self.last_word()),
            Some(Over::Frame(after)) => Err(End::SlowFrame { after }),
            Some(Over::Idle(after)) => {
                if self.tell(cx, |protocol, link| protocol.idle(link))?.is_break() {
                    return Err(End::Idle { after });
                }
                self.state.progress = now;
                Ok(true)
            }
        }
    }

    fn verdict(&self) -> Next {
        let interest = match (self.state.wants_input(), !self.output.is_empty()) {
            (true, true) => READ_AND_WRITE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => return Next::Suspend,
        };
        // It is: an exchange goes on until reading and writing say so, or has us called again.
        Next::Drained(interest)
    }
}

impl<S, F, P> Handler for Connection<S, F, P>
where
    S: Stream,
    F: Framing + Send,
    P: Protocol,
{
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
        self.turn(ready, cx).unwrap_or_else(|end| {
            self.state.end = Some(end);
            Next::Close
        })
    }

    fn closed(&mut self, id: HandleId, reason: Reason) {
        let end = self.state.end.take().unwrap_or(match reason {
            Reason::Closed => End::Closed,
            Reason::Removed => End::Removed,
            Reason::Shutdown => End::Shutdown,
            Reason::Panicked => End::Panicked,
            Reason::Failed(error) => End::Failed(error),
            Reason::DescriptorChanged => {
                End::Failed(io::Error::other("the stream has changed its descriptor"))
            }
        });
        self.protocol.ended(id, end);
    }
}

impl<S: AsFd, F, P> AsFd for Connection<S, F, P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<S: fmt::Debug, F, P> fmt::Debug for Connection<S, F, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("stream", &self.stream)
            .field("input", &self.input)
            .field("output", &self.output)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

const READ_AND_WRITE: Interest =
    Interest::from_bits(Interest::READABLE.bits() | Interest::WRITABLE.bits());

/// Enough for the dispatch to be a small part of it, short enough not to starve the others.
const BYTES_PER_TURN: usize = 64 * 1024;
