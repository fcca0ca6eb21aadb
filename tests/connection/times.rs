//! Silence, and frames that trickle in.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::others::Crier;
use crate::util::{PATIENCE, pool};
use crate::{BOTH, SOON, echo_line, end_of, read_to_end, register, talk, tcp_pair};
use cabrank::net::{Connection, ConnectionOptions, End, Lines, Link, OPENING, Protocol};
use cabrank::{Capacity, HandleId, Pool};

#[test]
fn silence_ends_it_and_never_early() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let options = ConnectionOptions::new().idle_timeout(SOON);
        // One that never says anything, and one that stops.
        let (protocol, told) = talk(echo_line);
        let (here, _silent) = crate::util::stream_pair();
        let start = Instant::now();
        let connection = Connection::with_options(here, Lines::new(10), protocol, options);
        register(&pool, connection, deactivation);
        assert!(matches!(end_of(&told), End::Idle { after: SOON }));
        assert!(start.elapsed() >= SOON);

        let (protocol, told) = talk(echo_line);
        let (here, mut there) = crate::util::stream_pair();
        let connection = Connection::with_options(here, Lines::new(10), protocol, options);
        register(&pool, connection, deactivation);
        let mut last = Instant::now();
        let mut served = true;
        for _ in 0..8 {
            thread::sleep(SOON / 4);
            last = Instant::now();
            served &= there.write_all(b"still\n").is_ok();
        }
        let end = end_of(&told);
        assert!(matches!(end, End::Idle { .. }), "{end:?}");
        // Unless this thread itself was slower than it may be.
        assert!(last.elapsed() >= SOON || !served);
    }
}

#[test]
fn what_is_there_when_the_time_is_looked_at_counts() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (protocol, _told) = talk(echo_line);
        let (here, mut there) = crate::util::stream_pair();
        let options = ConnectionOptions::new().idle_timeout(SOON).request_timeout(SOON);
        let connection = Connection::with_options(here, Lines::new(10), protocol, options);
        register(&pool, connection, deactivation);
        there.write_all(b"ha").unwrap();
        // The only thread is busy until both times are over, and the rest has come.
        let (enter, entered) = mpsc::channel();
        let (leave, left) = mpsc::channel::<()>();
        let busy = move |_cx: &mut cabrank::Context<'_>| {
            enter.send(()).unwrap();
            let _ = left.recv();
        };
        pool.post(busy).unwrap();
        entered.recv().unwrap();
        thread::sleep(2 * SOON);
        there.write_all(b"lf\n").unwrap();
        leave.send(()).unwrap();
        let mut answer = [0; 5];
        there.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"half\n");
    }
}

#[test]
fn what_we_say_does_not_make_a_silent_peer_less_silent() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (here, there) = crate::util::stream_pair();
    let (ended, end) = mpsc::channel();
    let options = ConnectionOptions::new().idle_timeout(SOON);
    let make =
        |inbox| Connection::with_options(here, Lines::new(10), Crier { inbox, ended }, options);
    let mailbox = pool.handles().register_with_mailbox(Capacity::UNBOUNDED, make, OPENING).unwrap();
    while mailbox.send(1).is_ok() {
        thread::sleep(SOON / 20);
    }
    assert!(matches!(end.recv_timeout(PATIENCE).unwrap(), End::Idle { .. }));
    drop(there);
}

#[test]
fn a_peer_that_takes_its_time_is_not_silent() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (protocol, told) = talk(|_line, link: &mut Link<'_>| link.put(&[7; 3_000_000]));
        let (here, mut there) = crate::util::stream_pair();
        let options = ConnectionOptions::new().idle_timeout(2 * SOON);
        let connection = Connection::with_options(here, Lines::new(10), protocol, options);
        register(&pool, connection, deactivation);
        there.write_all(b"send\n").unwrap();
        // Says nothing for longer than it may, but takes what it is given, piece by piece.
        let (start, mut received) = (Instant::now(), 0);
        let mut piece = vec![0; 300_000];
        while received < 3_000_000 {
            received += there.read(&mut piece).unwrap();
            thread::sleep(SOON / 2);
        }
        assert!(start.elapsed() > 2 * SOON);
        assert!(matches!(end_of(&told), End::Idle { .. }));
    }
}

#[test]
fn an_idle_connection_may_live_on() {
    struct Patient {
        calls: u32,
        told: mpsc::Sender<End>,
    }
    impl Protocol for Patient {
        fn frame(&mut self, _frame: &[u8], _link: &mut Link<'_>) {}
        fn idle(&mut self, link: &mut Link<'_>) -> ControlFlow<()> {
            self.calls += 1;
            link.put(b"there?\n");
            match self.calls {
                1 | 2 => ControlFlow::Continue(()),
                _ => {
                    link.put(b"bye\n");
                    link.close();
                    ControlFlow::Continue(())
                }
            }
        }
        fn ended(&mut self, _id: HandleId, end: End) {
            self.told.send(end).unwrap();
        }
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (told, hear) = mpsc::channel();
    let (here, mut there) = crate::util::stream_pair();
    let options = ConnectionOptions::new().idle_timeout(Duration::from_millis(5));
    let patient = Patient { calls: 0, told };
    let connection = Connection::with_options(here, Lines::new(10), patient, options);
    connection.register(pool.handles()).unwrap();
    assert_eq!(read_to_end(&mut there).unwrap(), b"there?\nthere?\nthere?\nbye\n");
    drop(there);
    assert!(matches!(hear.recv_timeout(PATIENCE).unwrap(), End::Closed));
}

#[test]
fn a_frame_that_trickles_in_is_not_waited_for() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (protocol, told) = talk(echo_line);
        let (here, mut there) = tcp_pair();
        let options = ConnectionOptions::new().idle_timeout(PATIENCE).request_timeout(SOON);
        let connection = Connection::with_options(here, Lines::new(1_000), protocol, options);
        register(&pool, connection, deactivation);
        // Silence is no slow frame, and whole frames take as long as they like.
        thread::sleep(2 * SOON);
        there.write_all(b"whole\n").unwrap();
        there.read_exact(&mut [0; 6]).unwrap();
        let start = Instant::now();
        while there.write_all(b"x").is_ok() && start.elapsed() < PATIENCE {
            thread::sleep(SOON / 10);
        }
        assert!(matches!(end_of(&told), End::SlowFrame { after: SOON }));
        assert!(start.elapsed() >= SOON);
    }
}

#[test]
fn a_peer_that_does_not_read_is_silent() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (protocol, told) = talk(echo_line);
        let (here, mut there) = crate::util::stream_pair();
        let options = ConnectionOptions::new().water_marks(100, 1_000).idle_timeout(SOON);
        let connection = Connection::with_options(here, Lines::new(100), protocol, options);
        register(&pool, connection, deactivation);
        let _ = there.write_all(&b"a line to come back\n".repeat(100_000));
        assert!(matches!(end_of(&told), End::Idle { .. }));
    }
}
