//! Handlers that several threads serve at once: a burst is spread, nothing is lost.

mod util;

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use cabrank::{Context, Interest, Next, Pool, Ready, shared_fn};
use util::{Counter, Exclusive, PATIENCE, Probe, pool, soak};

/// Where threads wait for one another, but not for ever.
#[derive(Default)]
struct Meeting {
    present: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    /// Whether that many have come in time.
    fn attend(&self, expected: usize) -> bool {
        let mut present = self.present.lock().unwrap();
        *present += 1;
        self.changed.notify_all();
        let missing = |present: &mut usize| *present < expected;
        let (present, _) = self.changed.wait_timeout_while(present, PATIENCE, missing).unwrap();
        *present >= expected
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// They arrive as one edge, which reaches one thread. Each thread that has taken one lets the next in
/// before it waits for all the others.
#[test]
fn a_burst_is_spread_when_each_thread_passes_on() {
    const BURST: usize = 6;
    let (pool, _watchdog) = pool(Pool::builder().threads(8));
    let socket = socket();
    let address = socket.local_addr().unwrap();
    let (meeting, met) = (Arc::new(Meeting::default()), Counter::new());
    let counted = met.clone();
    let serve = shared_fn(socket, move |socket: &UdpSocket, _ready, cx| {
        match socket.recv_from(&mut [0; 16]) {
            Ok(_) => {
                cx.pass_on();
                counted.add(u64::from(meeting.attend(BURST)));
                Next::Drained(Interest::READABLE)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Next::Drained(Interest::READABLE)
            }
            Err(error) => panic!("receiving: {error}"),
        }
    });
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let id = pool.handles().register_shared(serve, Interest::READABLE).unwrap();
    for number in 0..BURST {
        client.send_to(&[number as u8], address).unwrap();
    }
    met.wait_for(BURST as u64);
    pool.handles().remove(id).unwrap();
}

/// After it `Drained` is right, though nobody has seen `WouldBlock`: whatever is there, or comes, is
/// reported. Also while others change the handle.
#[test]
fn what_is_passed_on_is_not_lost() {
    let (pool, _watchdog) = pool(Pool::builder().threads(4));
    let socket = socket();
    let address = socket.local_addr().unwrap();
    let received = Counter::new();
    let counted = received.clone();
    let serve = shared_fn(socket, move |socket: &UdpSocket, _ready, cx| {
        if socket.recv_from(&mut [0; 16]).is_ok() {
            cx.pass_on();
            counted.add(1);
        }
        Next::Drained(Interest::READABLE)
    });
    let id = pool.handles().register_shared(serve, Interest::READABLE).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (start, mut sent) = (std::time::Instant::now(), 0);
    while start.elapsed() < soak() {
        for _ in 0..20 {
            client.send_to(b"x", address).unwrap();
        }
        pool.handles().suspend(id).unwrap();
        thread::yield_now();
        pool.handles().resume(id).unwrap();
        sent += 20;
        received.wait_for(sent);
    }
    assert_eq!(received.get(), sent);
}

/// An exclusive handle stays its thread's own, whatever the handler says.
#[test]
fn passing_on_does_nothing_to_an_exclusive_handler() {
    let (pool, _watchdog) = pool(Pool::builder().threads(4));
    let alone = Exclusive::default();
    let echo = move |stream: &mut _, ready: Ready, cx: &mut Context<'_>| {
        alone.run(|| {
            cx.pass_on();
            thread::yield_now();
            util::echo(stream, ready, cx)
        })
    };
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for _ in 0..500 {
        util::ping(&mut peer);
    }
    assert_eq!(pool.metrics().total().panics, 0);
}
