//! Buffered connections: frames, back-pressure, time-outs, and every way to end.

mod util;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cabrank::net::{
    BadFrame, Connection, ConnectionOptions, End, Found, Framing, LengthPrefix, Lines, Link,
    OPENING, Protocol, Stream, Unframed,
};
use cabrank::{Capacity, Deactivation, HandleId, Inbox, Pool, WhenFull};
use socket2::SockRef;
use util::{Counter, PATIENCE, Random, pool, seed, wait_until};

const BOTH: [Deactivation; 2] = [Deactivation::OneShot, Deactivation::Edge];
const SOON: Duration = Duration::from_millis(50);

/// A protocol that calls a closure with each frame, and tells what else happens to it.
struct Talk<F> {
    frame: F,
    told: mpsc::Sender<Told>,
}

#[derive(Debug)]
enum Told {
    Opened,
    Drained,
    Finished,
    Ended(End),
}

fn talk<F>(frame: F) -> (Talk<F>, mpsc::Receiver<Told>)
where
    F: FnMut(&[u8], &mut Link<'_>) + Send,
{
    let (told, hear) = mpsc::channel();
    (Talk { frame, told }, hear)
}

impl<F> Protocol for Talk<F>
where
    F: FnMut(&[u8], &mut Link<'_>) + Send,
{
    fn opened(&mut self, _link: &mut Link<'_>) {
        let _ = self.told.send(Told::Opened);
    }

    fn frame(&mut self, frame: &[u8], link: &mut Link<'_>) {
        (self.frame)(frame, link);
    }

    fn drained(&mut self, _link: &mut Link<'_>) {
        let _ = self.told.send(Told::Drained);
    }

    fn finished(&mut self, link: &mut Link<'_>) {
        let _ = self.told.send(Told::Finished);
        link.close();
    }

    fn ended(&mut self, _id: HandleId, end: End) {
        let _ = self.told.send(Told::Ended(end));
    }
}

/// Answers each line with the same line.
fn echo_line(line: &[u8], link: &mut Link<'_>) {
    link.put(line);
    link.put(b"\n");
}

/// The end of a connection, which must be the last thing that is told, and told once.
#[track_caller]
fn end_of(told: &mpsc::Receiver<Told>) -> End {
    loop {
        match told.recv_timeout(PATIENCE).expect("an end") {
            Told::Ended(end) => {
                let after = told.recv_timeout(PATIENCE);
                assert!(after.is_err(), "{after:?} after {end:?}");
                return end;
            }
            Told::Opened | Told::Drained | Told::Finished => {}
        }
    }
}

/// Two ends of a TCP connection; the first is non-blocking.
fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (here, _) = listener.accept().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    there.set_write_timeout(Some(PATIENCE)).unwrap();
    there.set_nodelay(true).unwrap();
    (here, there)
}

fn register<S, F, P>(pool: &Pool, connection: Connection<S, F, P>, how: Deactivation) -> HandleId
where
    S: Stream + 'static,
    F: Framing + Send + 'static,
    P: Protocol + 'static,
{
    pool.handles().register(connection, OPENING.deactivation(how)).unwrap()
}

fn read_to_end(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes)
}

// Frames.

#[test]
fn frames_come_whole_however_they_are_cut() {
    let mut random = Random::new(seed());
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        for longest_piece in [1, 7, 5_000] {
            let (protocol, told) = talk(|frame, link| LengthPrefix::put(link.output(), frame));
            let (here, mut there) = util::stream_pair();
            let framing = LengthPrefix::new(3_000);
            register(&pool, Connection::new(here, framing, protocol), deactivation);
            let mut sent = cabrank::net::Buffer::new();
            let count = if longest_piece == 1 { 3 } else { 200 };
            for _ in 0..count {
                let content: Vec<u8> = (0..random.below(3_001)).map(|n| (n % 251) as u8).collect();
                LengthPrefix::put(&mut sent, &content);
            }
            let mut writer = there.try_clone().unwrap();
            let (to_send, mut pieces) = (sent.filled().to_vec(), random.clone());
            let writing = thread::spawn(move || {
                let mut rest = &to_send[..];
                while !rest.is_empty() {
                    let piece = (1 + pieces.below(longest_piece) as usize).min(rest.len());
                    writer.write_all(&rest[..piece]).unwrap();
                    rest = &rest[piece..];
                }
                writer.shutdown(Shutdown::Write).unwrap();
            });
            assert!(read_to_end(&mut there).unwrap() == sent.filled(), "the echo differs");
            writing.join().unwrap();
            assert!(matches!(end_of(&told), End::Finished));
        }
    }
}

#[test]
fn lines_come_one_by_one_from_one_byte_at_a_time() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (lines, heard) = mpsc::channel();
        let (protocol, told) = talk(move |line, link| {
            lines.send(line.to_vec()).unwrap();
            echo_line(line, link);
        });
        let (here, mut there) = tcp_pair();
        register(&pool, Connection::new(here, Lines::new(10), protocol), deactivation);
        for byte in b"one\r\n\ntwo\n0123456789\n" {
            there.write_all(&[*byte]).unwrap();
        }
        for line in [&b"one"[..], b"", b"two", b"0123456789"] {
            assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), line);
        }
        there.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut there).unwrap(), b"one\n\ntwo\n0123456789\n");
        assert!(matches!(end_of(&told), End::Finished));
    }
}

/// Finds what it was told to find, whatever is there.
#[derive(Clone)]
struct Liar(Found);

impl Framing for Liar {
    fn find(&mut self, _input: &[u8]) -> Result<Found, BadFrame> {
        Ok(self.0.clone())
    }

    fn longest(&self) -> usize {
        5
    }
}

#[track_caller]
fn refuses<F: Framing + Clone + Send + 'static>(framing: F, sent: &[u8]) -> BadFrame {
    let [one_shot, edge] = BOTH.map(|deactivation| {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (protocol, told) = talk(|_frame, _link| unreachable!("not a frame"));
        let (here, mut there) = util::stream_pair();
        there.write_all(sent).unwrap();
        register(&pool, Connection::new(here, framing.clone(), protocol), deactivation);
        let end = end_of(&told);
        assert!(matches!(there.read(&mut [0]), Ok(0) | Err(_)));
        let End::BadFrame(bad) = end else { panic!("{end:?}") };
        bad
    });
    assert_eq!(one_shot, edge);
    edge
}

#[test]
fn frames_that_are_too_long_or_wrong_end_it_and_the_protocol_knows_why() {
    let too_long = |limit| BadFrame::TooLong { limit };
    assert_eq!(refuses(Lines::new(10), b"01234567890\n"), too_long(10));
    assert_eq!(refuses(Lines::new(10), &[b'x'; 100_000]), too_long(10));
    assert_eq!(refuses(LengthPrefix::new(10), &[0, 0, 0, 11]), too_long(10));
    assert_eq!(refuses(LengthPrefix::new(10), &[0xff; 4]), too_long(10));
    // A framing that never has enough is cut off at what it calls its longest.
    assert_eq!(refuses(Liar(Found::Incomplete { size: 5 }), b"12345"), too_long(5));
    assert_eq!(refuses(Liar(Found::Incomplete { size: 6 }), b"1"), too_long(5));
    // And one that finds what is not there does no harm.
    for found in [
        Found::Frame { content: 0..0, size: 0 },
        Found::Frame { content: 0..1, size: 3 },
        Found::Frame { content: 0..3, size: 2 },
        #[allow(clippy::reversed_empty_ranges)]
        Found::Frame { content: 2..1, size: 2 },
    ] {
        assert!(matches!(refuses(Liar(found), b"12"), BadFrame::Malformed(_)));
    }
}

#[test]
fn an_announced_length_costs_no_memory_before_the_bytes_come() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let mut peers = Vec::new();
    for _ in 0..100 {
        let (protocol, told) = talk(|frame, link| link.put(frame));
        let (here, there) = util::stream_pair();
        let connection = Connection::new(here, LengthPrefix::new(64 << 20), protocol);
        register(&pool, connection, BOTH[0]);
        peers.push((there, told));
    }
    let before = util::resident_memory();
    for (peer, _) in &mut peers {
        // A short frame, and the beginning of one of 50 MB.
        peer.write_all(&[0, 0, 0, 1, 9, 3, 0, 0, 0, 1, 2, 3]).unwrap();
        peer.read_exact(&mut [0]).unwrap();
        peer.write_all(&[4, 5, 6]).unwrap();
    }
    thread::sleep(SOON);
    let grown = util::resident_memory().saturating_sub(before);
    assert!(grown < 50 << 20, "{grown} bytes for 100 announcements of 50 MB");
}

/// A stream that hands out three bytes at a time of what it has read, as one that decodes would.
struct Decoder {
    stream: UnixStream,
    kept: Vec<u8>,
}

impl Read for Decoder {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.kept.is_empty() {
            let mut buffer = vec![0; 100_000];
            let bytes = self.stream.read(&mut buffer)?;
            self.kept.extend(buffer[..bytes].iter().rev());
        }
        let bytes = self.kept.len().min(3).min(into.len());
        for byte in &mut into[..bytes] {
            *byte = self.kept.pop().unwrap();
        }
        Ok(bytes)
    }
}

impl Write for Decoder {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.write(&from[..from.len().min(10_000)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Decoder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Stream for Decoder {}

#[test]
fn a_stream_that_keeps_bytes_back_is_read_to_the_end() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (here, mut there) = util::stream_pair();
        let (protocol, told) = talk(echo_line);
        let decoder = Decoder { stream: here, kept: Vec::new() };
        // The marks are low, so that it stops and goes on with bytes that are in the decoder only.
        let options = ConnectionOptions::new().water_marks(10, 1_000);
        let lines = Lines::new(100);
        let connection = Connection::with_options(decoder, lines, protocol, options);
        register(&pool, connection, deactivation);
        // More than is read in one turn.
        let sent: Vec<u8> = (0..200_000).map(|n| if n % 50 == 49 { b'\n' } else { b'x' }).collect();
        let mut writer = there.try_clone().unwrap();
        let to_send = sent.clone();
        let writing = thread::spawn(move || writer.write_all(&to_send).unwrap());
        let mut received = vec![0; sent.len()];
        there.read_exact(&mut received).unwrap();
        assert!(received == sent, "the echo differs");
        writing.join().unwrap();
        drop(there);
        assert!(matches!(end_of(&told), End::Finished | End::Failed(_)));
    }
}

// Back-pressure.

#[test]
fn a_peer_that_does_not_read_gets_no_more_and_loses_nothing() {
    const HIGH: usize = 10_000;
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (here, mut there) = util::stream_pair();
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
    let (here, mut there) = util::stream_pair();
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
        let (here, mut hose) = util::stream_pair();
        let (protocol, told) = talk(|_bytes, _link| ());
        register(&pool, Connection::new(here, Unframed, protocol), deactivation);
        let pouring = thread::spawn(move || while hose.write_all(&[0; 50_000]).is_ok() {});
        let (here, mut there) = util::stream_pair();
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

// The ends of connections.

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
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (protocol, told) = talk(|_line, link: &mut Link<'_>| link.put(&[7; 3_000_000]));
        let (here, mut there) = util::stream_pair();
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
    let (here, mut there) = util::stream_pair();
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
        let (here, mut there) = util::stream_pair();
        let options = ConnectionOptions::new().water_marks(100, 1_000).idle_timeout(SOON);
        let connection = Connection::with_options(here, Lines::new(100), protocol, options);
        register(&pool, connection, deactivation);
        let _ = there.write_all(&b"a line to come back\n".repeat(100_000));
        assert!(matches!(end_of(&told), End::Idle { .. }));
    }
}

// Others.

/// A connection to which others have something to say.
struct Crier {
    inbox: Inbox<u32>,
    ended: mpsc::Sender<End>,
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
        let (here, there) = util::stream_pair();
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
        let (here, mut there) = util::stream_pair();
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
    let (here, mut there) = util::stream_pair();
    let rejected = Connection::new(here, Lines::new(10), protocol).register(&handles).unwrap_err();
    let (mut stream, protocol) = rejected.handler.into_parts();
    stream.write_all(b"sorry").unwrap();
    there.read_exact(&mut [0; 5]).unwrap();
    drop(protocol);
    assert!(told.recv().is_err(), "it has not been opened, so it has not ended");
}
