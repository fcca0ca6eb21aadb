//! What ACE's reactor tests check, against this engine. The number is that of ACE's bug or the name of
//! its test; what is not here stands elsewhere by its property:
//!
//! | ACE | here |
//! |---|---|
//! | Thread_Pool_Reactor_Resume_Test | `handles`: resuming_while_the_handler_runs_counts |
//! | Bug_3974 | `bad_timing`: joining_after_shutdown_is_refused_at_once |
//! | Reactor_Fairness_Test | `promotion`: handles_that_are_all_always_ready_get_equal_shares |
//! | Reactor_Exceptions_Test | `life`: a_panicking_handler_costs_its_connection_only |
//! | Token_Strategy_Test | `promotion`: lifo_concentrates_the_work_and_fifo_spreads_it |
//! | Dev_Poll_Reactor_Echo_Test | `handles`: one_direction_ends_and_the_other_goes_on |
// A signal handler cannot be installed safely.
#![allow(unsafe_code)]

mod util;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cabrank::sys::eventfd::EventFd;
use cabrank::{
    Context, Error, HandleId, Handler, Interest, Left, Next, Pool, Ready, Reason, Registration,
    handler_fn,
};
use util::{Counter, Exclusive, PATIENCE, Probe, echo, ping, pool, read_some, stream_pair};

/// An echoed TCP connection that asserts that it is alone.
struct Echo {
    stream: TcpStream,
    alone: Exclusive,
    closed: Counter,
}

impl Handler for Echo {
    fn ready(&mut self, _ready: Ready, _cx: &mut Context<'_>) -> Next {
        let Echo { stream, alone, .. } = self;
        alone.run(|| {
            let mut buffer = [0; 256];
            match stream.read(&mut buffer) {
                Ok(0) => Next::Close,
                Ok(n) => match stream.write_all(&buffer[..n]) {
                    Ok(()) => Next::Rearm(Interest::READABLE),
                    Err(_) => Next::Close,
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    Next::Drained(Interest::READABLE)
                }
                Err(_) => Next::Close,
            }
        })
    }

    fn closed(&mut self, _id: cabrank::HandleId, _reason: Reason) {
        self.closed.add(1);
    }
}

impl AsFd for Echo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Listens on loopback and echoes; `closed` counts connections that have ended.
fn echo_server(pool: &Pool, closed: &Counter) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let closed = closed.clone();
    let acceptor = handler_fn(listener, move |listener: &mut TcpListener, _, cx| {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            let echo = Echo { stream, alone: Exclusive::default(), closed: closed.clone() };
            cx.handles().register(echo, Interest::READABLE).unwrap();
        }
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(acceptor, Interest::READABLE).unwrap();
    address
}

fn client(address: std::net::SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Thread_Pool_Reactor_Test: all requests of all connections are served, all handlers removed.
#[test]
fn many_clients_with_several_connections_are_all_served() {
    let (pool, _watchdog) = pool(Pool::builder().threads(5));
    let closed = Counter::new();
    let address = echo_server(&pool, &closed);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || {
                for connection in 0..10_u8 {
                    let mut stream = client(address);
                    for request in 0..20_u8 {
                        stream.write_all(&[connection, request]).unwrap();
                        let mut answer = [0; 2];
                        stream.read_exact(&mut answer).unwrap();
                        assert_eq!(answer, [connection, request]);
                    }
                }
            });
        }
    });
    closed.wait_for(80);
    util::wait_until("only the listener to be left", || pool.handles().len() == 1);
    assert_eq!(pool.metrics().total().panics, 0);
}

/// TP_Reactor_Test: input and output by events on both ends, in one pool; what is sent is received.
#[test]
fn full_duplex_transfers_are_complete() {
    const BYTES: usize = 2_000_000;
    struct Duplex {
        stream: UnixStream,
        to_send: usize,
        received: Arc<Mutex<usize>>,
        done: mpsc::Sender<()>,
    }
    impl Handler for Duplex {
        fn ready(&mut self, ready: Ready, _cx: &mut Context<'_>) -> Next {
            if ready.is_writable() && self.to_send > 0 {
                let chunk = [9; 8192];
                match self.stream.write(&chunk[..self.to_send.min(8192)]) {
                    Ok(n) => self.to_send -= n,
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                }
                if self.to_send == 0 {
                    self.stream.shutdown(std::net::Shutdown::Write).unwrap();
                }
            }
            let mut ended = false;
            if ready.is_readable() {
                match read_some(&mut self.stream) {
                    None => ended = true,
                    Some(bytes) => *self.received.lock().unwrap() += bytes.len(),
                }
            }
            match (ended, self.to_send) {
                (true, 0) => {
                    self.done.send(()).unwrap();
                    Next::Close
                }
                (true, _) => Next::Rearm(Interest::WRITABLE),
                (false, 0) => Next::Rearm(Interest::READABLE),
                (false, _) => Next::Rearm(Interest::READABLE | Interest::WRITABLE),
            }
        }
    }
    impl AsFd for Duplex {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }
    }
    for deactivation in [cabrank::Deactivation::OneShot, cabrank::Deactivation::Edge] {
        let (pool, _watchdog) = pool(Pool::builder().threads(4).deactivation(deactivation));
        let (one, other) = stream_pair();
        other.set_nonblocking(true).unwrap();
        let (done, ends) = mpsc::channel();
        let mut totals = Vec::new();
        for stream in [one, other] {
            let received = Arc::new(Mutex::new(0));
            totals.push(Arc::clone(&received));
            let duplex = Duplex { stream, to_send: BYTES, received, done: done.clone() };
            let both = Interest::READABLE | Interest::WRITABLE;
            pool.handles().register(duplex, both).unwrap();
        }
        for _ in 0..2 {
            ends.recv_timeout(PATIENCE).expect("an end of the transfer");
        }
        for total in totals {
            assert_eq!(*total.lock().unwrap(), BYTES);
        }
    }
}

/// MT_Reactor_Upcall_Test: several threads, one pipe, a slow handler that reads a message in two steps.
#[test]
fn framing_survives_a_slow_handler_and_many_threads() {
    let (pool, _watchdog) = pool(Pool::builder().threads(5).running(5));
    let (reader, mut writer) = std::io::pipe().unwrap();
    let counted = Counter::new();
    let count = counted.clone();
    let handler = handler_fn(reader, move |reader: &mut std::io::PipeReader, _, cx| {
        let mut length = [0];
        reader.read_exact(&mut length).unwrap();
        thread::sleep(Duration::from_micros(50));
        let mut body = vec![0; length[0] as usize];
        reader.read_exact(&mut body).unwrap();
        if body.is_empty() {
            cx.shutdown();
            return Next::Close;
        }
        assert!(body.iter().all(|byte| *byte == length[0]), "a message is torn");
        count.add(1);
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(handler, Interest::READABLE).unwrap();
    for number in 0..500_usize {
        let length = (number % 200 + 1) as u8;
        let mut message = vec![length; length as usize + 1];
        message[0] = length;
        writer.write_all(&message).unwrap();
    }
    writer.write_all(&[0]).unwrap();
    pool.join().ok();
    let report = pool.finish();
    assert_eq!(counted.get(), 500);
    assert_eq!(report.threads.len(), 5);
    assert_eq!(report.metrics.total().panics, 0);
}

/// Reactor_Remove_Resume_Test and bug 2395: during its call a handler gives up its descriptor, and a
/// newcomer is registered, suspended, under the same number. It is neither armed nor removed.
#[test]
fn a_newcomer_under_a_reused_number_is_left_alone() {
    // Alone in its process, so that nobody else takes the number.
    util::in_own_process("a_newcomer_under_a_reused_number_is_left_alone", || {
        for verdict in
            [Next::Rearm(Interest::READABLE), Next::Drained(Interest::READABLE), Next::Close]
        {
            reuse_the_number_of_a_handler_that_says(verdict);
        }
    });
}

fn reuse_the_number_of_a_handler_that_says(verdict: Next) {
    let (pool, _watchdog) = pool(Pool::builder().threads(3));
    let (told, news) = mpsc::channel::<(HandleId, UnixStream, Counter)>();
    let (spare, _spare_peer) = stream_pair();
    let mut spare = Some(spare);
    let (old, mut old_peer) =
        Probe::pair(move |stream: &mut UnixStream, _, cx: &mut Context<'_>| {
            let number = stream.as_raw_fd();
            // Ours is closed by being replaced, and its number is free.
            *stream = spare.take().expect("called once");
            let (newcomer, newcomer_peer) = Probe::pair(echo);
            assert_eq!(newcomer.stream.as_raw_fd(), number, "the lowest free number is given out");
            let closed = newcomer.closed.clone();
            let registration = Registration::new(Interest::READABLE).suspended();
            let id = cx.handles().register(newcomer, registration).unwrap();
            told.send((id, newcomer_peer, closed)).unwrap();
            verdict
        });
    let old_closed = old.closed.clone();
    pool.handles().register(old, Interest::READABLE).unwrap();
    old_peer.write_all(b"x").unwrap();
    let (id, mut peer, closed) = news.recv_timeout(PATIENCE).unwrap();
    old_closed.wait_for(1);
    peer.write_all(b"p").unwrap();
    thread::sleep(Duration::from_millis(10));
    assert_eq!(pool.metrics().total().events, 1, "the newcomer was armed");
    assert_eq!(closed.get(), 0, "the newcomer was removed");
    pool.handles().resume(id).unwrap();
    let mut back = [0];
    peer.read_exact(&mut back).unwrap();
    assert_eq!(old_closed.get(), 1);
}

/// Bug 2653: asking something of a handle that is gone neither crashes nor spins.
#[test]
fn asking_for_a_handle_that_is_gone_is_an_error_and_no_more() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (probe, _peer) = Probe::pair(echo);
    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
    pool.handles().remove(id).unwrap();
    let waits = pool.metrics().total().waits;
    for _ in 0..100 {
        let answer = pool.handles().set_interest(id, Interest::WRITABLE);
        assert!(matches!(answer, Err(Error::UnknownHandle { .. })));
        assert!(matches!(pool.handles().remove(id), Err(Error::UnknownHandle { .. })));
    }
    thread::sleep(Duration::from_millis(10));
    assert!(pool.metrics().total().waits <= waits + 1, "somebody spins");
}

/// Bug 2659: a signal in the wait is no reason to return, and none to wait longer than asked.
#[test]
fn signals_neither_end_nor_extend_a_wait() {
    use nix::sys::pthread::{pthread_kill, pthread_self};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn ignore(_: i32) {}
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR2, &action) }.unwrap();
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let main = pthread_self();
    thread::scope(|scope| {
        let peer = scope.spawn(move || {
            for _ in 0..40 {
                thread::sleep(Duration::from_millis(1));
                pthread_kill(main, Signal::SIGUSR2).unwrap();
            }
            ping(&mut peer);
            // Not closed before the wait has ended, which would be another event.
            peer
        });
        let left = pool.join_timeout(Duration::from_millis(200)).unwrap();
        assert!(matches!(left, Left::TimedOut));
        let _peer = peer.join().unwrap();
        assert_eq!(pool.metrics().total().events, 1);
    });
}

/// Bug 2740: clients that close and reopen all the time; numbers are reused, nobody stalls.
#[test]
fn clients_that_reconnect_all_the_time_are_served() {
    let (pool, _watchdog) = pool(Pool::builder().threads(4));
    let closed = Counter::new();
    let address = echo_server(&pool, &closed);
    thread::scope(|scope| {
        for number in 0..10_u8 {
            scope.spawn(move || {
                for _ in 0..100 {
                    let mut stream = client(address);
                    stream.write_all(&[number]).unwrap();
                    let mut answer = [0];
                    stream.read_exact(&mut answer).unwrap();
                    assert_eq!(answer, [number]);
                }
            });
        }
    });
    closed.wait_for(1_000);
}

/// Bugs 1890 and 2540: handles that are always ready are removed; what is left gets its events, and
/// events that have become stale do not make anybody spin.
#[test]
fn removing_handles_that_are_always_ready_leaves_the_others_served() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3));
    let mut ids = Vec::new();
    for _ in 0..10 {
        let eventfd = EventFd::new().unwrap();
        eventfd.notify().unwrap();
        let always =
            handler_fn(eventfd, |_, _: Ready, _: &mut Context<'_>| Next::Rearm(Interest::READABLE));
        ids.push(pool.handles().register(always, Interest::READABLE).unwrap());
    }
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for id in ids {
        ping(&mut peer);
        pool.handles().remove(id).unwrap();
    }
    ping(&mut peer);
    // Whoever is awake goes to rest, and stays there.
    thread::sleep(Duration::from_millis(10));
    let waits = pool.metrics().total().waits;
    thread::sleep(Duration::from_millis(30));
    assert!(pool.metrics().total().waits <= waits + 2, "somebody spins");
}

/// MT_NonBlocking_Connect_Test: connects are started by many threads and completed by any, each once.
#[test]
fn every_nonblocking_connect_completes_or_fails_once() {
    use socket2::{Domain, Socket, Type};
    struct Connecting {
        socket: Socket,
        outcome: mpsc::Sender<bool>,
    }
    impl Handler for Connecting {
        fn ready(&mut self, ready: Ready, _cx: &mut Context<'_>) -> Next {
            assert!(ready.is_writable());
            let connected = self.socket.take_error().unwrap().is_none();
            self.outcome.send(connected).unwrap();
            Next::Close
        }
    }
    impl AsFd for Connecting {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(4));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let good = listener.local_addr().unwrap();
    // Nobody listens where somebody has just stopped to.
    let bad = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (outcome, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (pool, outcome) = (&pool, outcome.clone());
            scope.spawn(move || {
                for number in 0..20 {
                    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                    socket.set_nonblocking(true).unwrap();
                    let address = if number % 2 == 0 { good } else { bad };
                    // In progress, or refused at once: on loopback both can be.
                    let refused = match socket.connect(&address.into()) {
                        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
                        Ok(()) => false,
                    };
                    if refused {
                        outcome.send(false).unwrap();
                        continue;
                    }
                    let connecting = Connecting { socket, outcome: outcome.clone() };
                    pool.handles().register(connecting, Interest::WRITABLE).unwrap();
                }
            });
        }
    });
    drop(outcome);
    let outcomes: Vec<bool> =
        (0..80).map(|_| outcomes.recv_timeout(PATIENCE).expect("an outcome")).collect();
    assert_eq!(outcomes.iter().filter(|connected| **connected).count(), 40);
    util::wait_until("all closed", || pool.handles().is_empty());
}

/// Reactor_Registration_Test: register, change, narrow; the right callbacks only.
#[test]
fn only_what_is_asked_for_is_reported() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (told, reports) = mpsc::channel();
    let (probe, mut peer) = Probe::pair(move |stream, ready: Ready, _: &mut Context<'_>| {
        let read = read_some(stream).unwrap_or_default();
        told.send((ready.is_readable(), ready.is_writable(), read.len())).unwrap();
        Next::Suspend
    });
    let id = pool.handles().register(probe, Interest::WRITABLE).unwrap();
    assert_eq!(reports.recv_timeout(PATIENCE).unwrap(), (false, true, 0));
    for (interest, write, expected) in [
        (Interest::READABLE, 3, (true, false, 3)),
        (Interest::READABLE | Interest::WRITABLE, 0, (false, true, 0)),
        (Interest::READABLE | Interest::WRITABLE, 2, (true, true, 2)),
        (Interest::READABLE, 1, (true, false, 1)),
    ] {
        peer.write_all(&vec![1; write]).unwrap();
        pool.handles().set_interest(id, interest).unwrap();
        pool.handles().resume(id).unwrap();
        assert_eq!(reports.recv_timeout(PATIENCE).unwrap(), expected);
    }
}
