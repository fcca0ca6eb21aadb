//! Peers that do not read, and peers that never stop.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Instant;

use crate::util::{Counter, PATIENCE, pool};
use crate::{BOTH, SOON, Told, echo_line, end_of, read_to_end, register, talk};
use cabrank::Pool;
use cabrank::net::{Connection, ConnectionOptions, End, Lines, Link, Unframed};

#[test]
fn a_peer_that_does_not_read_gets_no_more_and_loses_nothing() {
    const HIGH: usize = 10_000;
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (here, mut there) = crate::util::stream_pair();
        let (most, drained) = (Counter::new(), Counter::new());
        let high_water = most.clone();
        let (protocol, told) = talk(move |line: &[u8], link: &mut Link<'_>| {
            assert!(!link.is_congested(), "a frame in spite of congestion");
            echo_line(line, link);
            let now = link.output().len() as u64;
            high_water.add(now.saturating_sub(high_water.get()));
        });
        let options = ConnectionOptions::new().water_marks(1_000, HIGH);
        let lines = Lines::new(100);
        let connection = Connection::with_options(here, lines, protocol, options);
        register(&pool, connection, deactivation);
        // Writes until nothing goes any more: all buffers in between are full.
        there.set_nonblocking(true).unwrap();
        let line: Vec<u8> = (0..50).map(|n| if n == 49 { b'\n' } else { b'a' + n % 26 }).collect();
        let lines = line.repeat(1_000);
        let mut sent = 0;
        let mut last = Instant::now();
        while last.elapsed() < SOON {
            match there.write(&lines[sent % 50..]) {
                Ok(bytes) => {
                    sent += bytes;
                    last = Instant::now();
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        let most = most.get() as usize;
        assert!((HIGH..HIGH + 100).contains(&most), "{most} bytes in the queue");
        there.set_nonblocking(false).unwrap();
        there.shutdown(Shutdown::Write).unwrap();
        // It reads at last, and everything is there, but for the line that was cut off.
        let received = read_to_end(&mut there).unwrap();
        assert_eq!(received.len(), sent - sent % 50);
        assert!(received.chunks(50).all(|chunk| chunk == line));
        loop {
            match told.recv_timeout(PATIENCE).unwrap() {
                Told::Drained => _ = drained.add(1),
                Told::Ended(End::Finished | End::Truncated { .. }) => break,
                Told::Opened | Told::Finished => {}
                Told::Ended(other) => panic!("{other:?}"),
            }
        }
        assert!(drained.get() > 0);
    }
}

#[test]
fn an_output_without_bounds_is_bounded_by_its_maximum() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (here, mut there) = crate::util::stream_pair();
    let (protocol, told) = talk(|_line, link: &mut Link<'_>| link.put(&[0; 100_000]));
    let options = ConnectionOptions::new().water_marks(1, usize::MAX).max_output(1_000_000);
    let connection = Connection::with_options(here, Lines::new(10), protocol, options);
    register(&pool, connection, BOTH[0]);
    for _ in 0..50 {
        let _ = there.write_all(b"more\n");
    }
    match end_of(&told) {
        End::Overflow { bytes, limit } => assert!(limit == 1_000_000 && bytes > limit),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_that_sends_without_end_does_not_starve_the_others() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (here, mut hose) = crate::util::stream_pair();
        let (protocol, told) = talk(|_bytes, _link| ());
        register(&pool, Connection::new(here, Unframed, protocol), deactivation);
        let pouring = thread::spawn(move || while hose.write_all(&[0; 50_000]).is_ok() {});
        let (here, mut there) = crate::util::stream_pair();
        let (protocol, _told) = talk(echo_line);
        register(&pool, Connection::new(here, Lines::new(10), protocol), deactivation);
        for _ in 0..200 {
            there.write_all(b"ping\n").unwrap();
            there.read_exact(&mut [0; 5]).unwrap();
        }
        pool.finish();
        assert!(matches!(end_of(&told), End::Shutdown));
        pouring.join().unwrap();
    }
}
