//! How a connection stands, and until when.

use std::time::Duration;

use crate::interest::Ready;
use crate::net::options::ConnectionOptions;
use crate::net::protocol::{End, Leave, Wishes};
use crate::sync::nanoseconds;

/// How a connection stands.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) opened: bool,
    /// There may be something to read: the last read did not say that there is not.
    pub(crate) readable: bool,
    /// There may be room to write.
    pub(crate) writable: bool,
    /// The end of the stream, or an error, has been announced.
    pub(crate) hung_up: bool,
    /// The end of the stream has been read.
    pub(crate) peer_finished: bool,
    /// It was read while we had not closed.
    pub(crate) finished_by_peer: bool,
    /// How much of a frame had come by then.
    pub(crate) truncated: usize,
    /// Our half is closed.
    pub(crate) shut: bool,
    /// The output has reached the high-water mark, and not the low one since.
    pub(crate) congested: bool,
    pub(crate) wishes: Wishes,
    /// We are on our way out, since `progress` at the latest.
    pub(crate) closing: bool,
    /// When the peer last showed that it is there: it has sent something, which does not count while we
    /// close, or has taken something after there was no room to write. What goes into a socket that has
    /// room says nothing of the peer.
    pub(crate) progress: u64,
    /// When the first part of the frame that is not complete came.
    pub(crate) frame_began: Option<u64>,
    pub(crate) end: Option<End>,
}

impl State {
    pub(crate) fn new() -> State {
        State {
            opened: false,
            readable: false,
            writable: true,
            hung_up: false,
            peer_finished: false,
            finished_by_peer: false,
            truncated: 0,
            shut: false,
            congested: false,
            wishes: Wishes::NONE,
            closing: false,
            progress: 0,
            frame_began: None,
            end: None,
        }
    }

    pub(crate) fn note(&mut self, ready: Ready, now: u64) {
        if ready.is_writable() && !self.writable {
            self.progress = now;
        }
        self.readable |= ready.is_readable();
        self.writable |= ready.is_writable();
        self.hung_up |= ready.is_read_closed() || ready.is_error();
    }

    /// Whether the protocol is to be given frames.
    pub(crate) fn wants_frames(&self) -> bool {
        self.wishes.leave < Leave::Close && !self.wishes.paused && !self.congested
    }

    /// Whether to read. While closing it is read and thrown away: bytes that nobody has read would make the
    /// kernel reset the connection, and the peer lose what we have sent.
    pub(crate) fn wants_input(&self) -> bool {
        !self.peer_finished && (self.wants_frames() || self.wishes.leave >= Leave::Close)
    }

    /// Closing has a time of its own, which begins when it does.
    pub(crate) fn note_closing(&mut self, now: u64) {
        if self.wishes.leave >= Leave::Close && !self.closing {
            self.closing = true;
            self.progress = now;
        }
    }

    /// The time-outs that run, with so many bytes to be written.
    pub(crate) fn times(&self, options: &ConnectionOptions, unwritten: usize) -> Times {
        if self.closing {
            return Times { closing: Some(after(self.progress, options.linger)), ..Times::NONE };
        }
        // Who is paused is not waited for, except to take what was written.
        let counts = !self.wishes.paused || unwritten > 0;
        let began = self.frame_began.filter(|_| self.wants_input());
        Times {
            closing: None,
            frame: began
                .zip(options.request_timeout)
                .map(|(began, time)| (after(began, time), time)),
            idle: options
                .idle_timeout
                .filter(|_| counts)
                .map(|time| (after(self.progress, time), time)),
        }
    }
}

/// When which time-out is over, and how long it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    closing: Option<u64>,
    frame: Option<(u64, Duration)>,
    idle: Option<(u64, Duration)>,
}

/// Which time-out is over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    Closing,
    Frame(Duration),
    Idle(Duration),
}

impl Times {
    const NONE: Times = Times { closing: None, frame: None, idle: None };

    /// When the first of them is over.
    pub(crate) fn first(&self) -> Option<u64> {
        let due = |time: Option<(u64, Duration)>| time.map(|(due, _)| due);
        [self.closing, due(self.frame), due(self.idle)].into_iter().flatten().min()
    }

    /// One that is over.
    pub(crate) fn over(&self, now: u64) -> Option<Over> {
        let is_over = |time: &(u64, Duration)| time.0 <= now;
        let closing = self.closing.filter(|&due| due <= now).map(|_| Over::Closing);
        let frame = self.frame.filter(is_over).map(|(_, time)| Over::Frame(time));
        let idle = self.idle.filter(is_over).map(|(_, time)| Over::Idle(time));
        closing.or(frame).or(idle)
    }
}

fn after(time: u64, duration: Duration) -> u64 {
    time.saturating_add(nanoseconds(duration))
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_nanos(100);

    #[test]
    fn who_is_paused_is_waited_for_only_to_take_what_was_written() {
        let options = ConnectionOptions::new().idle_timeout(TIME);
        let mut state = State { progress: 5, ..State::new() };
        assert_eq!(state.times(&options, 0).first(), Some(105));
        state.wishes.paused = true;
        assert_eq!(state.times(&options, 0).first(), None);
        assert_eq!(state.times(&options, 1).first(), Some(105));
    }

    #[test]
    fn a_frame_is_not_waited_for_while_nothing_is_read() {
        let options = ConnectionOptions::new().request_timeout(TIME);
        let mut state = State { frame_began: Some(7), ..State::new() };
        assert_eq!(state.times(&options, 0).first(), Some(107));
        state.congested = true;
        assert_eq!(state.times(&options, 0).first(), None);
        state.congested = false;
        state.wishes.paused = true;
        assert_eq!(state.times(&options, 0).first(), None);
    }
}
