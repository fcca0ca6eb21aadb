//! Messages from others, work done elsewhere, registrations refused.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::mpsc;
use std::thread;

use crate::util::{PATIENCE, pool, wait_until};
use crate::{BOTH, SOON, echo_line, register, talk};
use cabrank::net::{Connection, ConnectionOptions, End, Lines, Link, OPENING, Protocol};
use cabrank::{Capacity, HandleId, Inbox, Pool, WhenFull};

/// A connection to which others have something to say.
pub(crate) struct Crier {
    pub(crate) inbox: Inbox<u32>,
    pub(crate) ended: mpsc::Sender<End>,
}

impl Crier {
    fn cry(&mut self, link: &mut Link<'_>) {
        while !link.is_congested() {
            let Some(number) = self.inbox.take() else { return };
            writeln!(link.output(), "{number}").unwrap();
        }
    }
}

impl Protocol for Crier {
    fn opened(&mut self, link: &mut Link<'_>) {
        link.put(b"welcome\n");
    }

    fn frame(&mut self, frame: &[u8], link: &mut Link<'_>) {
        link.put(frame);
        link.put(b"!\n");
    }

    fn notified(&mut self, link: &mut Link<'_>) {
        self.cry(link);
    }

    fn drained(&mut self, link: &mut Link<'_>) {
        self.cry(link);
    }

    fn ended(&mut self, _id: HandleId, end: End) {
        self.ended.send(end).unwrap();
    }
}

#[test]
fn messages_reach_the_peer_in_order_and_a_slow_one_is_felt_by_the_senders() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (here, there) = crate::util::stream_pair();
        let (ended, end) = mpsc::channel();
        let options = ConnectionOptions::new().water_marks(100, 1_000);
        let make =
            |inbox| Connection::with_options(here, Lines::new(10), Crier { inbox, ended }, options);
        let capacity = Capacity::bounded(50, WhenFull::Wait);
        let registration = OPENING.deactivation(deactivation);
        let mailbox = pool.handles().register_with_mailbox(capacity, make, registration).unwrap();
        let sending = thread::spawn(move || (0..100_000).for_each(|n| mailbox.send(n).unwrap()));
        // Late: by now all buffers are full, and the sender waits.
        thread::sleep(SOON);
        assert!(!sending.is_finished());
        let mut lines = io::BufRead::lines(io::BufReader::new(&there)).map(Result::unwrap);
        assert_eq!(lines.next().unwrap(), "welcome");
        for number in 0..100_000_u32 {
            assert_eq!(lines.next().unwrap(), number.to_string());
        }
        sending.join().unwrap();
        (&there).write_all(b"hey\n").unwrap();
        assert_eq!(lines.next().unwrap(), "hey!");
        there.shutdown(Shutdown::Both).unwrap();
        assert!(matches!(end.recv_timeout(PATIENCE).unwrap(), End::Finished | End::Failed(_)));
    }
}

/// Each request is worked on by a thread outside the pool, and the next one waits for it.
struct Offload {
    done: Option<mpsc::Receiver<Vec<u8>>>,
}

impl Protocol for Offload {
    fn frame(&mut self, frame: &[u8], link: &mut Link<'_>) {
        assert!(self.done.is_none(), "a request before the last was answered");
        let (answer, done) = mpsc::channel();
        self.done = Some(done);
        link.pause();
        let (handles, id, request) = (link.handles().clone(), link.id(), frame.to_vec());
        thread::spawn(move || {
            thread::sleep(SOON / 10);
            let _ = answer.send(request);
            let _ = handles.notify(id);
        });
    }

    fn notified(&mut self, link: &mut Link<'_>) {
        let Some(answer) = self.done.as_ref().and_then(|done| done.try_recv().ok()) else { return };
        self.done = None;
        echo_line(&answer, link);
        link.resume();
    }
}

#[test]
fn a_request_may_be_worked_on_elsewhere() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (here, mut there) = crate::util::stream_pair();
        // The work takes longer than the peer may: it is not the peer's time.
        let options = ConnectionOptions::new()
            .idle_timeout(SOON / 20)
            .request_timeout(SOON / 20)
            .water_marks(1, 2);
        let offload = Offload { done: None };
        let connection = Connection::with_options(here, Lines::new(10), offload, options);
        let id = register(&pool, connection, deactivation);
        // All at once, with half of another: it is all in the buffer while the first is worked on.
        there.write_all(b"one\ntwo\nthree\n").unwrap();
        let mut answers = [0; 14];
        there.read_exact(&mut answers).unwrap();
        assert_eq!(&answers, b"one\ntwo\nthree\n");
        wait_until("it to be idle", || !pool.handles().contains(id));
    }
}

#[test]
fn a_refused_registration_gives_the_connection_back() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let handles = pool.handles().clone();
    pool.finish();
    let (protocol, told) = talk(echo_line);
    let (here, mut there) = crate::util::stream_pair();
    let rejected = Connection::new(here, Lines::new(10), protocol).register(&handles).unwrap_err();
    let (mut stream, protocol) = rejected.handler.into_parts();
    stream.write_all(b"sorry").unwrap();
    there.read_exact(&mut [0; 5]).unwrap();
    drop(protocol);
    assert!(told.recv().is_err(), "it has not been opened, so it has not ended");
}
