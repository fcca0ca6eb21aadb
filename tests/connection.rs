//! Buffered connections: frames, back-pressure, messages.

mod util;

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use cabrank::net::{
    BadFrame, Connection, ConnectionOptions, End, Found, Framing, LengthPrefix, Lines, Link,
    OPENING, Protocol, Stream, Unframed,
};
use cabrank::{Capacity, Pool, WhenFull};
use util::talk::{
    BOTH, Crier, SOON, Told, echo_line, end_of, read_to_end, register, talk, tcp_pair,
};
use util::{Counter, PATIENCE, Random, pool, seed, wait_until};

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

// Others.

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

/// A stream that has always more to read.
struct Endless(UnixStream);

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        into.fill(b'x');
        Ok(into.len())
    }
}

impl Write for Endless {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Endless {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream for Endless {}

#[test]
fn a_turn_ends_however_much_there_is_to_read() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let (here, mut endless) = util::stream_pair();
    endless.write_all(b"x").unwrap();
    let (protocol, _told) = talk(|_bytes, _link| ());
    register(&pool, Connection::new(Endless(here), Unframed, protocol), BOTH[0]);
    let (here, mut there) = util::stream_pair();
    let (protocol, _told) = talk(echo_line);
    register(&pool, Connection::new(here, Lines::new(10), protocol), BOTH[0]);
    for _ in 0..20 {
        there.write_all(b"ping\n").unwrap();
        there.read_exact(&mut [0; 5]).unwrap();
    }
}

#[test]
fn a_connection_that_is_to_be_removed_reads_no_more() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let (here, mut endless) = util::stream_pair();
    endless.write_all(b"x").unwrap();
    let frames = Counter::new();
    let count = frames.clone();
    let (protocol, told) = talk(move |_bytes, link: &mut Link<'_>| {
        count.add(1);
        link.handles().remove(link.id()).unwrap();
    });
    register(&pool, Connection::new(Endless(here), Unframed, protocol), BOTH[0]);
    assert!(matches!(end_of(&told), End::Removed));
    assert_eq!(frames.get(), 1);
}

#[test]
fn frames_come_again_at_the_low_water_mark_and_not_before() {
    const LOW: usize = 1_000;
    /// Tells how much is left to be written when it hears that the output is down.
    struct Gauge(mpsc::Sender<usize>);
    impl Protocol for Gauge {
        fn frame(&mut self, _frame: &[u8], link: &mut Link<'_>) {
            link.put(&[b'x'; 2_000_000]);
        }
        fn drained(&mut self, link: &mut Link<'_>) {
            self.0.send(link.output().len()).unwrap();
        }
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (here, mut there) = util::stream_pair();
    let (told, left) = mpsc::channel();
    let options = ConnectionOptions::new().water_marks(LOW, 1_000_000);
    let connection = Connection::with_options(here, Lines::new(10), Gauge(told), options);
    register(&pool, connection, BOTH[0]);
    there.write_all(b"send\n").unwrap();
    there.read_exact(&mut vec![0; 2_000_000]).unwrap();
    assert!(left.recv_timeout(PATIENCE).unwrap() <= LOW);
}
