//! Handlers that several threads serve at once: a burst is spread, nothing is lost.

mod util;

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;

use cabrank::{Context, HandleId, Interest, Next, Pool, Ready, Reason, SharedHandler, shared_fn};
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

/// Does something to its own descriptor, or to its handle, in its only call.
struct Restless {
    sockets: [UdpSocket; 2],
    /// Which of them it shows.
    shown: AtomicUsize,
    act: fn(&Restless, &mut Context<'_>) -> Next,
    told: mpsc::Sender<String>,
}

impl AsFd for Restless {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets[self.shown.load(Ordering::Relaxed)].as_fd()
    }
}

impl SharedHandler for Restless {
    fn ready(&self, _ready: Ready, cx: &mut Context<'_>) -> Next {
        (self.act)(self, cx)
    }

    fn closed(&self, _id: HandleId, reason: Reason) {
        self.told.send(format!("{reason:?}")).unwrap();
    }
}

impl Restless {
    /// The number stays, and what it stood for is closed: the kernel has forgotten it.
    #[allow(unsafe_code)] // replacing a descriptor is
    fn replace(&self) {
        let [registered, other] = &self.sockets;
        // SAFETY: both are open sockets of ours, and stay so.
        let number = unsafe { libc::dup2(other.as_raw_fd(), registered.as_raw_fd()) };
        assert_eq!(number, registered.as_raw_fd());
    }
}

/// Why it was closed, and how often it was armed again, after one event.
fn fate_of(act: fn(&Restless, &mut Context<'_>) -> Next) -> (String, u64) {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let sockets = [socket(), socket()];
    sockets[1].send_to(b"x", sockets[0].local_addr().unwrap()).unwrap();
    let (told, reasons) = mpsc::channel();
    let restless = Restless { sockets, shown: AtomicUsize::new(0), act, told };
    pool.handles().register_shared(restless, Interest::READABLE).unwrap();
    let reason = reasons.recv_timeout(PATIENCE).expect("a handle that is closed");
    (reason, pool.finish().metrics.total().rearms)
}

#[test]
fn a_handler_whose_descriptor_the_kernel_has_forgotten_is_closed() {
    let by_verdict = |restless: &Restless, _cx: &mut Context<'_>| {
        restless.replace();
        Next::Rearm(Interest::READABLE)
    };
    assert_eq!(fate_of(by_verdict), ("DescriptorChanged".to_string(), 0));
    let by_passing_on = |restless: &Restless, cx: &mut Context<'_>| {
        restless.replace();
        cx.pass_on();
        Next::Drained(Interest::READABLE)
    };
    assert_eq!(fate_of(by_passing_on), ("DescriptorChanged".to_string(), 0));
}

/// What has its number by now may be anybody's.
#[test]
fn a_handler_that_has_given_its_descriptor_away_cannot_pass_on() {
    let swap = |restless: &Restless, cx: &mut Context<'_>| {
        restless.shown.store(1, Ordering::Relaxed);
        cx.pass_on();
        Next::Drained(Interest::READABLE)
    };
    assert_eq!(fate_of(swap), ("DescriptorChanged".to_string(), 0));
}

#[test]
fn the_first_reason_to_close_a_handle_is_the_one_that_is_told() {
    let remove = |_: &Restless, cx: &mut Context<'_>| {
        cx.handles().remove(cx.id()).unwrap();
        Next::Close
    };
    assert_eq!(fate_of(remove).0, "Removed");
}
