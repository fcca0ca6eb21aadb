//! One echoed connection, for any event loop: a bounded buffer, partial writes by writable interest.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use cabrank::{Context, Handler, Interest, Next, Ready};

/// A TCP or Unix stream.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What a request costs besides being echoed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Burned for every request.
    pub(crate) work: Duration,
    /// Slept for a request that begins with `B`.
    pub(crate) block: Duration,
}

pub(crate) struct Connection {
    stream: Stream,
    cost: Cost,
    buffer: Box<[u8; BUFFER]>,
    /// What has been read and not yet written: `buffer[start..end]`. Nothing is read before it is
    /// empty, so a peer that does not read is not read from either.
    start: usize,
    end: usize,
}

impl Connection {
    pub(crate) fn new(stream: Stream, cost: Cost) -> Connection {
        Connection { stream, cost, buffer: Box::new([0; BUFFER]), start: 0, end: 0 }
    }

    /// Reads once, answers, and says what to wait for.
    pub(crate) fn turn(&mut self, ready: Ready) -> io::Result<Next> {
        let mut drained = false;
        if self.start == self.end {
            match self.stream.read(&mut self.buffer[..]) {
                Ok(0) => return Ok(Next::Close),
                Ok(read) => {
                    (self.start, self.end) = (0, read);
                    // A short read has emptied the stream, unless its end has been announced too.
                    drained = read < BUFFER && !ready.is_read_closed();
                    self.cost.pay(&self.buffer[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Next::Drained(Interest::READABLE));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    return Ok(Next::Rearm(Interest::READABLE));
                }
                Err(error) => return Err(error),
            }
        }
        while self.start < self.end {
            match self.stream.write(&self.buffer[self.start..self.end]) {
                Ok(written) => self.start += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Next::Rearm(Interest::WRITABLE));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let readable = Interest::READABLE;
        Ok(if drained { Next::Drained(readable) } else { Next::Rearm(readable) })
    }
}

impl Cost {
    /// Does what the request costs.
    pub(crate) fn pay(&self, request: &[u8]) {
        if !self.block.is_zero() && request.first() == Some(&b'B') {
            thread::sleep(self.block);
        }
        if !self.work.is_zero() {
            burn(self.work);
        }
    }
}

/// Uses so much of the CPU's time, not the clock's: what passes while another thread has the CPU is no work
/// done, or else those would look best who have the most threads in each other's way.
fn burn(time: Duration) {
    let (mut burned, mut last) = (Duration::ZERO, Instant::now());
    while burned < time {
        let now = Instant::now();
        burned += (now - last).min(LONGEST_LOOK);
        last = now;
    }
}

impl Handler for Connection {
    fn ready(&mut self, ready: Ready, _cx: &mut Context<'_>) -> Next {
        // Whatever went wrong, the peer is gone.
        self.turn(ready).unwrap_or(Next::Close)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(buffer),
            Stream::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// From one look at the clock to the next, unless this thread has been interrupted.
const LONGEST_LOOK: Duration = Duration::from_nanos(500);

/// Read and answered at once.
pub(crate) const BUFFER: usize = 16 * 1024;
