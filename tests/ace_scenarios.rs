//! What ACE's reactor tests check, against this engine. The number is that of ACE's bug or the name of
//! its test; what is not here stands elsewhere by its property:
//!
//! | ACE | here |
//! |---|---|
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
    Context, Error, Follower, HandleId, Handler, Interest, Left, Next, Pool, Ready, Reason,
    Registration, Removal, Turn, Watch, handler_fn,
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

/// Thread_Pool_Reactor_Resume_Test: a handler that resumes its own handle in its call loses nothing, and is
/// not called again before it has returned. One that does not stays silent.
#[test]
fn a_handler_may_resume_its_own_handle() {
    const BYTES: u64 = 300;
    let (pool, _watchdog) = pool(Pool::builder().threads(5).running(5));
    let (alone, bytes, calls) = (Exclusive::default(), Counter::new(), Counter::new());
    let (count, count_calls) = (bytes.clone(), calls.clone());
    let (probe, mut peer) = Probe::pair(move |stream, _, cx: &mut Context<'_>| {
        alone.run(|| {
            count_calls.add(1);
            cx.handles().resume(cx.id()).unwrap();
            // It is ready all the while: more has come, or the end has.
            thread::sleep(Duration::from_micros(100));
            let all = count.add(stream.read(&mut [0]).map_or(0, |n| n as u64));
            if all == BYTES {
                cx.handles().suspend(cx.id()).unwrap();
            }
        });
        Next::Suspend
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for _ in 0..BYTES / 10 {
        peer.write_all(&[1; 10]).unwrap();
    }
    bytes.wait_for(BYTES);
    peer.write_all(b"x").unwrap();
    thread::sleep(Duration::from_millis(10));
    let all = pool.finish().metrics.total();
    assert_eq!((bytes.get(), all.panics), (BYTES, 0));
    assert!(calls.get() >= BYTES, "one byte to a call");
}

/// TP_Reactor_Test, in turns: one end sends all it has, then the other.
#[test]
fn half_duplex_transfers_are_complete() {
    const BYTES: usize = 500_000;
    const TURNS: u32 = 4;
    struct Half {
        stream: UnixStream,
        to_send: usize,
        to_receive: usize,
        /// How often it is still to send and receive.
        turns: (u32, u32),
        done: mpsc::Sender<()>,
    }
    impl Handler for Half {
        fn ready(&mut self, ready: Ready, _cx: &mut Context<'_>) -> Next {
            assert_ne!((self.to_send > 0), (self.to_receive > 0), "one direction at a time");
            if self.to_send > 0 && ready.is_writable() {
                let chunk = [7; 8192];
                match self.stream.write(&chunk[..self.to_send.min(8192)]) {
                    Ok(n) => self.to_send -= n,
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                }
                if self.to_send == 0 {
                    self.to_receive = BYTES;
                    self.turns.0 -= 1;
                }
            } else if self.to_receive > 0 && ready.is_readable() {
                let read = read_some(&mut self.stream).expect("the other end stays");
                // More would be of a turn that is ours.
                self.to_receive =
                    self.to_receive.checked_sub(read.len()).expect("no more than sent");
                if self.to_receive == 0 {
                    self.to_send = BYTES;
                    self.turns.1 -= 1;
                }
            }
            if self.turns == (0, 0) {
                self.done.send(()).unwrap();
                return Next::Suspend;
            }
            Next::Rearm(if self.to_send > 0 { Interest::WRITABLE } else { Interest::READABLE })
        }
    }
    impl AsFd for Half {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }
    }
    for deactivation in [cabrank::Deactivation::OneShot, cabrank::Deactivation::Edge] {
        let (pool, _watchdog) = pool(Pool::builder().threads(4).deactivation(deactivation));
        let (one, other) = stream_pair();
        other.set_nonblocking(true).unwrap();
        let (done, ends) = mpsc::channel();
        for (stream, begins) in [(one, true), (other, false)] {
            let (to_send, to_receive) = if begins { (BYTES, 0) } else { (0, BYTES) };
            let half =
                Half { stream, to_send, to_receive, turns: (TURNS, TURNS), done: done.clone() };
            let interest = if begins { Interest::WRITABLE } else { Interest::READABLE };
            pool.handles().register(half, interest).unwrap();
        }
        for _ in 0..2 {
            ends.recv_timeout(PATIENCE).expect("an end of the transfer");
        }
        assert_eq!(pool.finish().metrics.total().panics, 0);
    }
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

/// Bug 2740: clients that close and reopen all the time, with a timer set and cancelled for each exchange;
/// numbers are reused, nobody stalls, and no handler is called without data.
#[test]
fn clients_that_reconnect_all_the_time_are_served() {
    struct Timed {
        stream: TcpStream,
        timer: Option<HandleId>,
        tally: Tally,
    }
    #[derive(Clone, Default)]
    struct Tally {
        exchanges: Counter,
        without_data: Counter,
        fired: Counter,
        closed: Counter,
    }
    impl Handler for Timed {
        fn ready(&mut self, _ready: Ready, cx: &mut Context<'_>) -> Next {
            if let Some(timer) = self.timer.take() {
                cx.handles().remove(timer).unwrap();
            }
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(1) => {}
                Ok(_) => return Next::Close,
                Err(_) => {
                    self.tally.without_data.add(1);
                    return Next::Rearm(Interest::READABLE);
                }
            }
            let fired = self.tally.fired.clone();
            let fire = move |_: &mut Context<'_>| _ = fired.add(1);
            self.timer = Some(cx.handles().after(Duration::from_secs(3_600), fire).unwrap());
            self.tally.exchanges.add(1);
            self.stream.write_all(&byte).unwrap();
            Next::Rearm(Interest::READABLE)
        }

        fn closed(&mut self, _id: HandleId, _reason: Reason) {
            self.tally.closed.add(1);
        }
    }
    impl AsFd for Timed {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(4));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let tally = Tally::default();
    let common = tally.clone();
    let acceptor = handler_fn(listener, move |listener: &mut TcpListener, _, cx| {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            let timed = Timed { stream, timer: None, tally: common.clone() };
            cx.handles().register(timed, Interest::READABLE).unwrap();
        }
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(acceptor, Interest::READABLE).unwrap();
    thread::scope(|scope| {
        for number in 0..10_u8 {
            scope.spawn(move || {
                for _ in 0..100 {
                    let mut stream = client(address);
                    for exchange in 0..3 {
                        stream.write_all(&[number + exchange]).unwrap();
                        let mut answer = [0];
                        stream.read_exact(&mut answer).unwrap();
                        assert_eq!(answer, [number + exchange]);
                    }
                }
            });
        }
    });
    tally.closed.wait_for(1_000);
    util::wait_until("timers and connections to be gone", || pool.handles().len() == 1);
    assert_eq!(tally.exchanges.get(), 3_000);
    assert_eq!(tally.without_data.get(), 0, "called without data");
    assert_eq!(tally.fired.get(), 0, "fired though it was cancelled");
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

/// The same from the inside: each that is ready removes another, and a timer's callback runs a loop of its
/// own, in which it removes the rest.
#[test]
fn a_nested_loop_removes_handles_that_are_always_ready() {
    const HANDLES: usize = 12;
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(2).running(2));
    let pool = Arc::new(pool);
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let ids: Arc<Mutex<Vec<HandleId>>> = Arc::default();
    let nested = (Arc::downgrade(&pool), Arc::clone(&ids));
    let turns = Counter::new();
    let count = turns.clone();
    let run_nested = move |cx: &mut Context<'_>| {
        let pool = nested.0.upgrade().unwrap();
        let mut follower = pool.enlist().unwrap();
        loop {
            let Some(id) = nested.1.lock().unwrap().pop() else { return };
            assert_eq!(cx.handles().remove(id).unwrap(), Removal::Done, "nobody else runs");
            if nested.1.lock().unwrap().is_empty() {
                return;
            }
            follower = one_turn(follower);
            count.add(1);
        }
    };
    pool.handles().after(Duration::ZERO, run_nested).unwrap();
    for _ in 0..HANDLES {
        let eventfd = EventFd::new().unwrap();
        eventfd.notify().unwrap();
        let (others, nested_turns) = (Arc::clone(&ids), turns.clone());
        let always = handler_fn(eventfd, move |_, _: Ready, cx: &mut Context<'_>| {
            let mut others = others.lock().unwrap();
            let other = others.iter().position(|id| *id != cx.id());
            if let Some(at) = other.filter(|_| nested_turns.get() > 0) {
                let id = others.remove(at);
                drop(others);
                let removal = cx.handles().remove(id).unwrap();
                assert_eq!(removal, Removal::Done, "nobody else runs");
            }
            Next::Rearm(Interest::READABLE)
        });
        let id = pool.handles().register(always, Interest::READABLE).unwrap();
        ids.lock().unwrap().push(id);
    }
    let mut follower = pool.enlist().unwrap();
    while !ids.lock().unwrap().is_empty() {
        follower = one_turn(follower);
    }
    drop(follower);
    assert!(turns.get() > 1, "the nested loop went round");
    // What is left gets its events, and nobody spins.
    peer.write_all(b"p").unwrap();
    let before = pool.metrics().total();
    assert!(matches!(pool.join_timeout(Duration::from_millis(20)).unwrap(), Left::TimedOut));
    peer.read_exact(&mut [0]).unwrap();
    let after = pool.metrics().total() - &before;
    assert_eq!((after.events, after.panics), (1, 0), "{}", pool.metrics());
    assert!(after.waits <= 4, "somebody spins: {}", pool.metrics());
    assert_eq!(pool.handles().len(), 1, "the echo");
}

/// Leads, waits, promotes and processes, or processes what is left over.
fn one_turn(follower: Follower<'_>) -> Follower<'_> {
    match follower.follow() {
        Turn::Lead(leader) => match leader.wait() {
            Watch::Detected(detected) => match detected.promote() {
                Ok(processing) => processing.process(),
                Err(follower) => follower,
            },
            Watch::Nothing(follower) => follower,
        },
        Turn::Process(processing) => processing.process(),
        Turn::Leave(why) => panic!("{why}"),
    }
}

/// MT_NonBlocking_Connect_Test: connects are started by many threads and completed by any, each once.
#[test]
fn every_nonblocking_connect_completes_or_fails_once() {
    use socket2::{Domain, Socket, Type};
    struct Connecting {
        socket: Socket,
        number: u32,
        outcome: mpsc::Sender<(u32, bool)>,
    }
    impl Handler for Connecting {
        fn ready(&mut self, ready: Ready, _cx: &mut Context<'_>) -> Next {
            assert!(ready.is_writable());
            let connected = self.socket.take_error().unwrap().is_none();
            self.outcome.send((self.number, connected)).unwrap();
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
        for thread in 0..4 {
            let (pool, outcome) = (&pool, outcome.clone());
            scope.spawn(move || {
                for number in 20 * thread..20 * (thread + 1) {
                    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                    socket.set_nonblocking(true).unwrap();
                    let address = if number % 2 == 0 { good } else { bad };
                    // In progress, or refused at once: on loopback both can be.
                    let refused = match socket.connect(&address.into()) {
                        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
                        Ok(()) => false,
                    };
                    if refused {
                        outcome.send((number, false)).unwrap();
                        continue;
                    }
                    let connecting = Connecting { socket, number, outcome: outcome.clone() };
                    pool.handles().register(connecting, Interest::WRITABLE).unwrap();
                }
            });
        }
    });
    drop(outcome);
    let mut told: Vec<(u32, bool)> =
        (0..80).map(|_| outcomes.recv_timeout(PATIENCE).expect("an outcome")).collect();
    told.sort_unstable();
    assert!(told.iter().map(|(number, _)| *number).eq(0..80), "each once: {told:?}");
    assert!(told.iter().all(|(number, connected)| *connected == (number % 2 == 0)), "{told:?}");
    util::wait_until("all closed", || pool.handles().is_empty());
    assert!(outcomes.try_recv().is_err(), "a second outcome");
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
