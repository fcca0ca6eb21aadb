//! Every way in which a buffered connection ends, and when.

mod util;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cabrank::net::{Connection, ConnectionOptions, End, Lines, Link, OPENING, Protocol};
use cabrank::{Capacity, HandleId, Pool};
use socket2::SockRef;
use util::talk::{BOTH, Crier, SOON, echo_line, end_of, read_to_end, register, talk, tcp_pair};
use util::{PATIENCE, pool};

#[test]
fn what_is_to_be_written_is_written_after_the_peer_has_finished() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        for tcp in [true, false] {
            let (protocol, told) = talk(|_line, link: &mut Link<'_>| {
                let room = link.output().spare(5_000_000);
                for (n, byte) in room[..5_000_000].iter_mut().enumerate() {
                    *byte = (n % 251) as u8;
                }
                link.output().commit(5_000_000);
            });
            let receive = |there: &mut dyn Read| {
                // Late: most of it waits in the queue when the end comes.
                thread::sleep(SOON);
                let mut received = Vec::new();
                there.read_to_end(&mut received).unwrap();
                assert_eq!(received.len(), 5_000_000);
                assert!(received.iter().enumerate().all(|(n, &byte)| byte == (n % 251) as u8));
            };
            if tcp {
                let (here, mut there) = tcp_pair();
                register(&pool, Connection::new(here, Lines::new(10), protocol), deactivation);
                there.write_all(b"send\n").unwrap();
                there.shutdown(Shutdown::Write).unwrap();
                receive(&mut there);
            } else {
                let (here, mut there) = util::stream_pair();
                register(&pool, Connection::new(here, Lines::new(10), protocol), deactivation);
                there.write_all(b"send\n").unwrap();
                there.shutdown(Shutdown::Write).unwrap();
                receive(&mut there);
            }
            assert!(matches!(end_of(&told), End::Finished));
        }
    }
}

#[test]
fn an_end_in_the_middle_of_a_frame_is_told() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (protocol, told) = talk(echo_line);
        let (here, mut there) = tcp_pair();
        register(&pool, Connection::new(here, Lines::new(10), protocol), deactivation);
        there.write_all(b"whole\nhalf").unwrap();
        there.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut there).unwrap(), b"whole\n");
        assert!(matches!(end_of(&told), End::Truncated { bytes: 4 }));
    }
}

#[test]
fn our_half_may_end_first() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (lines, heard) = mpsc::channel();
        let (protocol, told) = talk(move |line: &[u8], link: &mut Link<'_>| {
            lines.send(line.to_vec()).unwrap();
            if line == b"finish" {
                link.put(&[b'x'; 1_000_000]);
                link.finish();
            } else {
                // Too late, and dropped.
                link.put(b"not heard");
            }
        });
        let (here, mut there) = tcp_pair();
        register(&pool, Connection::new(here, Lines::new(10), protocol), deactivation);
        there.write_all(b"finish\n").unwrap();
        let received = read_to_end(&mut there).unwrap();
        assert_eq!(received.len(), 1_000_000);
        there.write_all(b"one\ntwo\n").unwrap();
        for line in [&b"finish"[..], b"one", b"two"] {
            assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), line);
        }
        drop(there);
        assert!(matches!(end_of(&told), End::Finished));
    }
}

#[test]
fn last_words_are_heard_in_spite_of_what_nobody_reads() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (protocol, told) = talk(|_line, link: &mut Link<'_>| {
            link.put(&[b'x'; 300_000]);
            link.close();
        });
        let (here, mut there) = tcp_pair();
        register(&pool, Connection::new(here, Lines::new(10), protocol), deactivation);
        // Unread bytes would make the kernel reset the connection, and the last words be lost.
        let mut writer = there.try_clone().unwrap();
        let writing = thread::spawn(move || {
            let _ = writer.write_all(&b"line\n".repeat(400_000));
            let _ = writer.shutdown(Shutdown::Write);
        });
        thread::sleep(SOON);
        assert_eq!(read_to_end(&mut there).unwrap().len(), 300_000);
        writing.join().unwrap();
        assert!(matches!(end_of(&told), End::Closed));
    }
}

#[test]
fn a_peer_that_does_not_take_the_last_words_is_not_waited_for_for_ever() {
    for (deactivation, linger) in [(BOTH[0], SOON), (BOTH[1], SOON), (BOTH[0], Duration::ZERO)] {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (protocol, told) = talk(|_line, link: &mut Link<'_>| {
            link.put(&[b'x'; 10_000_000]);
            link.close();
        });
        let (here, mut there) = util::stream_pair();
        let options = ConnectionOptions::new().linger(linger);
        let connection = Connection::with_options(here, Lines::new(10), protocol, options);
        register(&pool, connection, deactivation);
        let start = Instant::now();
        there.write_all(b"close\n").unwrap();
        assert!(matches!(end_of(&told), End::Unsent { bytes } if bytes > 1_000_000));
        assert!(start.elapsed() >= linger);
    }
    // It has taken everything, but does not say that it has done with us.
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (protocol, told) = talk(|_line, link: &mut Link<'_>| link.close());
    let (here, mut there) = util::stream_pair();
    let options = ConnectionOptions::new().linger(SOON);
    let connection = Connection::with_options(here, Lines::new(10), protocol, options);
    register(&pool, connection, BOTH[0]);
    // Silence before does not count.
    thread::sleep(2 * SOON);
    let start = Instant::now();
    there.write_all(b"close\n").unwrap();
    assert!(matches!(end_of(&told), End::Closed));
    assert!(start.elapsed() >= SOON);
}

#[test]
fn a_peer_that_goes_on_talking_does_not_put_the_end_off() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (protocol, told) = talk(|_line, link: &mut Link<'_>| link.close());
    let (here, mut there) = util::stream_pair();
    let options = ConnectionOptions::new().linger(2 * SOON);
    let connection = Connection::with_options(here, Lines::new(10), protocol, options);
    register(&pool, connection, BOTH[0]);
    let start = Instant::now();
    while there.write_all(b"close\n").is_ok() {
        assert!(start.elapsed() < PATIENCE, "it waits for as long as the peer talks");
        thread::sleep(SOON / 10);
    }
    assert!(matches!(end_of(&told), End::Closed));
}

#[test]
fn the_time_to_close_begins_with_closing() {
    /// Closes when it is called.
    struct Called(mpsc::Sender<End>);
    impl Protocol for Called {
        fn frame(&mut self, _frame: &[u8], _link: &mut Link<'_>) {}
        fn notified(&mut self, link: &mut Link<'_>) {
            link.close();
        }
        fn ended(&mut self, _id: HandleId, end: End) {
            self.0.send(end).unwrap();
        }
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (here, _there) = util::stream_pair();
    let (told, end) = mpsc::channel();
    let options = ConnectionOptions::new().linger(SOON);
    let connection = Connection::with_options(here, Lines::new(10), Called(told), options);
    let id = register(&pool, connection, BOTH[0]);
    thread::sleep(2 * SOON);
    let start = Instant::now();
    pool.handles().notify(id).unwrap();
    assert!(matches!(end.recv_timeout(PATIENCE).unwrap(), End::Closed));
    assert!(start.elapsed() >= SOON);
}

#[test]
fn a_reset_ends_it_once() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        for pending in [0, 5_000_000] {
            let (protocol, told) = talk(move |_line, link: &mut Link<'_>| {
                link.put(&vec![0; pending]);
            });
            let (here, mut there) = tcp_pair();
            register(&pool, Connection::new(here, Lines::new(10), protocol), deactivation);
            there.write_all(b"go\n").unwrap();
            if pending > 0 {
                there.read_exact(&mut [0]).unwrap();
            }
            SockRef::from(&there).set_linger(Some(Duration::ZERO)).unwrap();
            drop(there);
            match end_of(&told) {
                End::Failed(error) => assert!(
                    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
                    "{error:?}"
                ),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn an_abort_is_seen_as_a_reset() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (protocol, told) = talk(|_line, link: &mut Link<'_>| {
        link.put(b"never sent");
        link.abort();
    });
    let (here, mut there) = tcp_pair();
    register(&pool, Connection::new(here, Lines::new(10), protocol), BOTH[0]);
    there.write_all(b"go\nand\non\n").unwrap();
    assert_eq!(there.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(matches!(end_of(&told), End::Closed));
}

#[test]
fn removal_shutdown_and_panic_are_told_once() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let connect = |frame: fn(&[u8], &mut Link<'_>)| {
        let (protocol, told) = talk(frame);
        let (here, there) = util::stream_pair();
        let id = register(&pool, Connection::new(here, Lines::new(10), protocol), BOTH[0]);
        (id, told, there)
    };
    let (id, told, mut there) = connect(echo_line);
    pool.handles().remove(id).unwrap();
    assert!(matches!(end_of(&told), End::Removed));
    assert_eq!(there.read(&mut [0]).unwrap(), 0);

    let (_id, told, mut there) = connect(|_line, _link| panic!("on purpose"));
    there.write_all(b"go\nand\n").unwrap();
    assert!(matches!(end_of(&told), End::Panicked));
    assert!(matches!(there.read(&mut [0]), Ok(0) | Err(_)));

    // From inside, while there are more frames to come.
    let (_id, told, mut there) = connect(|_line, link| {
        link.put(b"heard\n");
        link.handles().remove(link.id()).unwrap();
    });
    there.write_all(b"go\n").unwrap();
    assert!(matches!(end_of(&told), End::Removed));
    assert!(read_to_end(&mut there).unwrap().starts_with(b"heard\n"));

    let (_id, told, mut there) = connect(|_line, link| link.shutdown());
    there.write_all(b"go\n").unwrap();
    assert!(matches!(end_of(&told), End::Shutdown));
    pool.finish();
}

// Times.

#[test]
fn silence_ends_it_and_never_early() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let options = ConnectionOptions::new().idle_timeout(SOON);
        // One that never says anything, and one that stops.
        let (protocol, told) = talk(echo_line);
        let (here, _silent) = util::stream_pair();
        let start = Instant::now();
        let connection = Connection::with_options(here, Lines::new(10), protocol, options);
        register(&pool, connection, deactivation);
        assert!(matches!(end_of(&told), End::Idle { after: SOON }));
        assert!(start.elapsed() >= SOON);

        let (protocol, told) = talk(echo_line);
        let (here, mut there) = util::stream_pair();
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
        let (here, mut there) = util::stream_pair();
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
    let (here, there) = util::stream_pair();
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
    const IDLE: Duration = Duration::from_millis(400);
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (protocol, told) = talk(|_line, link: &mut Link<'_>| link.put(&[7; 3_000_000]));
        let (here, mut there) = util::stream_pair();
        let options = ConnectionOptions::new().idle_timeout(IDLE);
        let connection = Connection::with_options(here, Lines::new(10), protocol, options);
        register(&pool, connection, deactivation);
        there.write_all(b"send\n").unwrap();
        // Says nothing for longer than it may, but takes what it is given, piece by piece.
        let (start, mut received) = (Instant::now(), 0);
        let (mut last, mut longest) = (start, Duration::ZERO);
        let mut piece = vec![0; 200_000];
        while received < 3_000_000 {
            let bytes = there.read(&mut piece).unwrap();
            longest = longest.max(last.elapsed());
            last = Instant::now();
            if bytes == 0 {
                break;
            }
            received += bytes;
            thread::sleep(IDLE / 10);
        }
        // Unless this thread itself was slower than it may be.
        assert!(received == 3_000_000 || longest >= IDLE / 2, "{received}, {longest:?}");
        assert!(start.elapsed() > IDLE);
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
    let (here, mut there) = util::stream_pair();
    let options = ConnectionOptions::new().idle_timeout(SOON);
    let patient = Patient { calls: 0, told };
    let connection = Connection::with_options(here, Lines::new(10), patient, options);
    let start = Instant::now();
    connection.register(pool.handles()).unwrap();
    assert_eq!(read_to_end(&mut there).unwrap(), b"there?\nthere?\nthere?\nbye\n");
    assert!(start.elapsed() >= 3 * SOON, "asked before the time was over once more");
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
        let (here, mut there) = util::stream_pair();
        let options = ConnectionOptions::new().water_marks(100, 1_000).idle_timeout(SOON);
        let connection = Connection::with_options(here, Lines::new(100), protocol, options);
        register(&pool, connection, deactivation);
        let _ = there.write_all(&b"a line to come back\n".repeat(100_000));
        assert!(matches!(end_of(&told), End::Idle { .. }));
    }
}

#[test]
fn a_frame_that_is_complete_is_not_waited_for() {
    const TIME: Duration = Duration::from_millis(300);
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (protocol, _told) = talk(echo_line);
    let (here, mut there) = util::stream_pair();
    let options = ConnectionOptions::new().request_timeout(TIME);
    register(&pool, Connection::with_options(here, Lines::new(10), protocol, options), BOTH[0]);
    let start = Instant::now();
    there.write_all(b"ha").unwrap();
    thread::sleep(TIME / 10);
    there.write_all(b"lf\n").unwrap();
    let answered = there.read_exact(&mut [0; 5]);
    if start.elapsed() < TIME {
        answered.unwrap();
        thread::sleep(2 * TIME);
        there.write_all(b"next\n").unwrap();
        there.read_exact(&mut [0; 5]).expect("it has nothing to be late with");
    }
}

/// It was not the peer that took the time: not to say something, nor to complete its frame.
#[test]
fn the_time_of_a_pause_is_not_the_peers() {
    const TIME: Duration = Duration::from_millis(300);
    /// Pauses and goes on when it is called, and says so.
    struct Stopping {
        paused: bool,
    }
    impl Protocol for Stopping {
        fn frame(&mut self, frame: &[u8], link: &mut Link<'_>) {
            echo_line(frame, link);
        }
        fn notified(&mut self, link: &mut Link<'_>) {
            self.paused = !self.paused;
            if self.paused {
                link.pause()
            } else {
                link.resume()
            }
            link.put(b".");
        }
    }
    for (idle, request) in [(TIME, PATIENCE), (PATIENCE, TIME)] {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (here, mut there) = util::stream_pair();
        let options = ConnectionOptions::new().idle_timeout(idle).request_timeout(request);
        let protocol = Stopping { paused: false };
        let connection = Connection::with_options(here, Lines::new(10), protocol, options);
        let id = register(&pool, connection, BOTH[0]);
        let start = Instant::now();
        there.write_all(b"ha").unwrap();
        thread::sleep(TIME / 10);
        let paused = pool.handles().notify(id).is_ok() && there.read_exact(&mut [0]).is_ok();
        if start.elapsed() >= TIME {
            // This thread itself was slower than it may be.
            continue;
        }
        assert!(paused);
        thread::sleep(2 * TIME);
        let start = Instant::now();
        pool.handles().notify(id).unwrap();
        there.read_exact(&mut [0]).unwrap();
        thread::sleep(TIME / 3);
        let answered = there.write_all(b"lf\n").and_then(|()| there.read_exact(&mut [0; 5]));
        assert!(answered.is_ok() || start.elapsed() >= TIME, "{answered:?}");
    }
}
