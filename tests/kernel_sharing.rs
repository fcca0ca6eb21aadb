//! What the kernel does with one file in several epoll instances, and with a timer that is never read. If one
//! of these fails, a decision of the engine has lost its ground, as in `kernel_contract`.
#![allow(unsafe_code)] // a request to the kernel that has no wrapper

mod util;

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cabrank::sys::epoll::{Epoll, Flags};
use cabrank::sys::eventfd::EventFd;
use cabrank::sys::timerfd::TimerFd;
use nix::sys::resource::{UsageWho, getrusage};

use util::waiter::{Waiter, poll, room};
use util::{PATIENCE, Watchdog};

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().expect("an error").raw_os_error()
}

// EPOLLEXCLUSIVE.

#[test]
fn exclusive_is_refused_together_with_one_shot_and_with_rdhup() {
    let (epoll, eventfd) = (Epoll::new().unwrap(), EventFd::new().unwrap());
    for refused in [Flags::ONESHOT, Flags::RDHUP, Flags::PRI, Flags::ET | Flags::ONESHOT] {
        let flags = Flags::IN | Flags::EXCLUSIVE | refused;
        assert_eq!(errno(epoll.add(&eventfd, flags, 0)), Some(libc::EINVAL), "{flags:?}");
    }
}

#[test]
fn exclusive_cannot_be_modified_nor_brought_in_by_modifying() {
    let (epoll, eventfd) = (Epoll::new().unwrap(), EventFd::new().unwrap());
    epoll.add(&eventfd, Flags::IN | Flags::EXCLUSIVE, 0).unwrap();
    for flags in [Flags::IN, Flags::IN | Flags::EXCLUSIVE, Flags::IN | Flags::ONESHOT] {
        assert_eq!(errno(epoll.modify(&eventfd, flags, 0)), Some(libc::EINVAL), "{flags:?}");
    }
    let ordinary = EventFd::new().unwrap();
    epoll.add(&ordinary, Flags::IN, 0).unwrap();
    let exclusive = Flags::IN | Flags::EXCLUSIVE;
    assert_eq!(errno(epoll.modify(&ordinary, exclusive, 0)), Some(libc::EINVAL));
}

#[test]
fn exclusive_is_refused_for_a_nested_epoll() {
    let (outer, inner) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let flags = Flags::IN | Flags::EXCLUSIVE;
    assert_eq!(errno(outer.add(&inner, flags, 0)), Some(libc::EINVAL));
    outer.add(&inner, Flags::IN, 0).unwrap();
}

#[test]
fn exclusive_goes_with_edge_and_is_suspended_by_deleting_and_adding() {
    let (epoll, eventfd) = (Epoll::new().unwrap(), EventFd::new().unwrap());
    let flags = Flags::IN | Flags::OUT | Flags::EXCLUSIVE | Flags::ET;
    epoll.add(&eventfd, flags, 1).unwrap();
    assert_eq!(poll(&epoll), [(Flags::OUT, 1)]);
    epoll.delete(&eventfd).unwrap();
    eventfd.notify().unwrap();
    assert_eq!(poll(&epoll), []);
    epoll.add(&eventfd, flags, 2).unwrap();
    assert_eq!(poll(&epoll), [(Flags::IN | Flags::OUT, 2)]);
}

#[test]
fn exclusive_acts_between_epoll_instances() {
    for (extra, expected) in [(Flags::default(), 2), (Flags::EXCLUSIVE, 1)] {
        let eventfd = EventFd::new().unwrap();
        let epolls = [Arc::new(Epoll::new().unwrap()), Arc::new(Epoll::new().unwrap())];
        for epoll in &epolls {
            epoll.add(&eventfd, Flags::IN | extra, 0).unwrap();
        }
        let waiters = epolls.each_ref().map(Waiter::start);
        eventfd.notify().unwrap();
        let woken = waiters.iter().filter(|waiter| !waiter.sleeps_on()).count();
        assert_eq!(woken, expected, "with {extra:?}");
        // An instance that was not told finds out by asking; here its waiter is told once more.
        eventfd.notify().unwrap();
        waiters.into_iter().for_each(|waiter| _ = waiter.back());
    }
}

#[test]
fn exclusive_goes_with_error_hang_up_and_wakeup() {
    let wakeup = Flags::from_bits(libc::EPOLLWAKEUP as u32);
    let all = Flags::IN | Flags::OUT | Flags::ERR | Flags::HUP | Flags::ET | wakeup;
    for with in [Flags::ERR, Flags::HUP, wakeup, all] {
        let (epoll, eventfd) = (Epoll::new().unwrap(), EventFd::new().unwrap());
        epoll.add(&eventfd, Flags::IN | Flags::EXCLUSIVE | with, 4).unwrap();
        eventfd.notify().unwrap();
        let reported = poll(&epoll);
        assert!(reported[0].0.contains(Flags::IN) && reported[0].1 == 4, "{reported:?}");
    }
}

/// The waiters of one instance are woken as they are without it: by a level all, by an edge one.
#[test]
fn exclusive_has_no_effect_within_one_instance() {
    for exclusive in [Flags::default(), Flags::EXCLUSIVE] {
        let epoll = Arc::new(Epoll::new().unwrap());
        let eventfd = EventFd::new().unwrap();
        epoll.add(&eventfd, Flags::IN | exclusive, 0).unwrap();
        let waiters = [Waiter::start(&epoll), Waiter::start(&epoll)];
        eventfd.notify().unwrap();
        waiters.into_iter().for_each(|waiter| _ = waiter.back());

        let epoll = Arc::new(Epoll::new().unwrap());
        let eventfd = EventFd::new().unwrap();
        epoll.add(&eventfd, Flags::IN | Flags::ET | exclusive, 0).unwrap();
        let (bottom, top) = (Waiter::start(&epoll), Waiter::start(&epoll));
        eventfd.notify().unwrap();
        top.back();
        assert!(bottom.sleeps_on(), "with {exclusive:?}");
        eventfd.notify().unwrap();
        bottom.back();
    }
}

/// Whoever came first has it, again and again; who leaves and comes again is the last.
#[test]
fn exclusive_wake_ups_favour_one_instance() {
    let eventfd = EventFd::new().unwrap();
    let [first, second] = [Arc::new(Epoll::new().unwrap()), Arc::new(Epoll::new().unwrap())];
    let flags = Flags::IN | Flags::EXCLUSIVE;
    first.add(&eventfd, flags, 1).unwrap();
    second.add(&eventfd, flags, 2).unwrap();
    let unlucky = Waiter::start(&second);
    for _ in 0..10 {
        let lucky = Waiter::start(&first);
        eventfd.notify().unwrap();
        assert_eq!(lucky.back().data(), 1);
        assert!(unlucky.sleeps_on());
        eventfd.read().unwrap();
    }
    first.delete(&eventfd).unwrap();
    first.add(&eventfd, flags, 1).unwrap();
    let other = Waiter::start(&first);
    eventfd.notify().unwrap();
    assert_eq!(unlucky.back().data(), 2);
    assert!(other.sleeps_on());
    eventfd.notify().unwrap();
    other.back();
}

// Busy polling.

/// What `EPIOCSPARAMS` takes.
#[repr(C)]
struct BusyPolling {
    microseconds: u32,
    budget: u16,
    prefer: u8,
    padding: u8,
}

/// There is no network device to be polled on loopback: a kernel that knows of it takes the wish, one that
/// does not says so, and a wait sleeps either way.
#[test]
fn busy_polling_does_nothing_on_loopback() {
    const EPIOCSPARAMS: u64 = 0x4008_8a01;
    let epoll = Epoll::new().unwrap();
    let wish = BusyPolling { microseconds: 200_000, budget: 8, prefer: 0, padding: 0 };
    let number = epoll.as_fd().as_raw_fd();
    // SAFETY: the kernel reads the eight bytes of the wish, which outlives the call.
    let taken = unsafe { libc::ioctl(number, EPIOCSPARAMS as _, &raw const wish) };
    if taken == -1 {
        let refusal = errno::<()>(Err(io::Error::last_os_error()));
        let polite = [libc::ENOTTY, libc::EINVAL, libc::EOPNOTSUPP].map(Some);
        assert!(polite.contains(&refusal), "{refusal:?}");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    epoll.add(&server, Flags::IN, 7).unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(epoll.wait(&mut room(1), Some(PATIENCE)).unwrap(), 1);
    std::io::Read::read_exact(&mut &server, &mut [0]).unwrap();
    let sleeps = || getrusage(UsageWho::RUSAGE_THREAD).unwrap().voluntary_context_switches();
    let before = sleeps();
    assert_eq!(epoll.wait(&mut room(1), Some(Duration::from_millis(20))).unwrap(), 0);
    assert!(sleeps() > before, "it was awake for 20 ms");
}

// A timer that is never read, as the engine's alarm.

/// How many times the timer is reported until `quiet` has passed without.
fn edges(epoll: &Epoll, quiet: Duration) -> usize {
    let mut edges = 0;
    while epoll.wait(&mut room(1), Some(quiet)).unwrap() > 0 {
        edges += 1;
    }
    edges
}

#[test]
fn a_timer_that_is_never_read_makes_one_edge_for_each_expiry() {
    let _watchdog = Watchdog::without_pool();
    let (epoll, timer) = (Epoll::new().unwrap(), TimerFd::new().unwrap());
    epoll.add(&timer, Flags::IN | Flags::ET, 6).unwrap();
    let mut events = room(1);
    for round in 0..200 {
        let delay = Duration::from_micros(round);
        let start = Instant::now();
        timer.after(delay).unwrap();
        assert_eq!(epoll.wait(&mut events, Some(PATIENCE)).unwrap(), 1, "round {round}");
        assert!(start.elapsed() >= delay);
        assert_eq!(poll(&epoll), [], "round {round}: a second edge");
    }
}

#[test]
fn a_timer_that_is_set_anew_makes_one_edge_at_its_last_time() {
    let _watchdog = Watchdog::without_pool();
    let (epoll, timer) = (Epoll::new().unwrap(), TimerFd::new().unwrap());
    epoll.add(&timer, Flags::IN | Flags::ET, 6).unwrap();
    // Before its time: moved away, and moved nearer.
    for delays in [[1_000_000, 20], [3_600_000_000, 1_000], [50_000_000, 0]] {
        for micros in delays {
            timer.after(Duration::from_micros(micros)).unwrap();
        }
        assert_eq!(edges(&epoll, Duration::from_millis(10)), 1, "{delays:?}");
    }
    // After its time, and before anybody has looked: the edge of the first stays, and the second makes one.
    timer.after(Duration::ZERO).unwrap();
    std::thread::sleep(Duration::from_millis(2));
    timer.after(Duration::from_millis(5)).unwrap();
    assert!((1..=2).contains(&edges(&epoll, Duration::from_millis(20))));
}

#[test]
fn an_expiry_wakes_one_of_two_waiters() {
    let epoll = Arc::new(Epoll::new().unwrap());
    let timer = TimerFd::new().unwrap();
    epoll.add(&timer, Flags::IN | Flags::ET, 6).unwrap();
    for _ in 0..20 {
        let (bottom, top) = (Waiter::start(&epoll), Waiter::start(&epoll));
        timer.after(Duration::from_micros(200)).unwrap();
        assert_eq!(top.back().data(), 6);
        assert!(bottom.sleeps_on(), "the last to come is woken, and nobody else");
        timer.after(Duration::from_micros(200)).unwrap();
        assert_eq!(bottom.back().data(), 6);
    }
}

/// A handle set in another loop: readable for as long as something is to be had, which is what tells the other
/// loop to look.
#[test]
fn an_epoll_in_an_epoll_is_readable_while_it_has_events() {
    let (outer, inner) = (Epoll::new().unwrap(), Epoll::new().unwrap());
    let (here, mut there) = UnixStream::pair().unwrap();
    inner.add(&here, Flags::IN | Flags::ONESHOT, 1).unwrap();
    outer.add(&inner, Flags::IN, 2).unwrap();
    assert_eq!(poll(&outer), []);
    there.write_all(b"x").unwrap();
    assert_eq!(poll(&outer), [(Flags::IN, 2)]);
    assert_eq!(poll(&inner), [(Flags::IN, 1)]);
    assert_eq!(poll(&outer), [], "it has been had");
}
