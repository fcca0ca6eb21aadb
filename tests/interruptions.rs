//! Signals that interrupt system calls, a thousand a second, and a process that is stopped and continued.

mod util;

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::{Interest, Pool};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::unistd::Pid;
use util::{Counter, Probe, echo, in_own_process, pool, soak};

static INTERRUPTIONS: AtomicU64 = AtomicU64::new(0);

extern "C" fn interrupt(_signal: i32) {
    INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
}

/// Every millisecond of real time, from now on, some thread is interrupted.
#[allow(unsafe_code)]
fn interrupt_every_millisecond() {
    // No SA_RESTART: system calls fail with EINTR.
    let action = SigAction::new(SigHandler::Handler(interrupt), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler touches one atomic.
    unsafe { sigaction(Signal::SIGALRM, &action) }.unwrap();
    let millisecond = libc::timeval { tv_sec: 0, tv_usec: 1_000 };
    let timer = libc::itimerval { it_interval: millisecond, it_value: millisecond };
    // SAFETY: the kernel reads the timer, which outlives the call, and writes nothing.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// Sends and reads back a hundred bytes, whatever interrupts it.
fn exchange(peer: &mut UnixStream) {
    let (sent, mut back) = ([7; 100], [0; 100]);
    peer.write_all(&sent).unwrap();
    peer.read_exact(&mut back).unwrap();
    assert_eq!(sent, back);
}

#[test]
fn a_pool_that_is_interrupted_all_the_time_serves_and_keeps_time() {
    in_own_process("a_pool_that_is_interrupted_all_the_time_serves_and_keeps_time", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(3));
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        interrupt_every_millisecond();
        let own = Pid::this();
        // Stopped and continued by another process, since it cannot do so itself.
        let mut stopper = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("for i in 1 2 3 4 5 6 7 8 9 10; do kill -STOP {own}; kill -CONT {own}; sleep 0.02; done"))
            .spawn()
            .unwrap();
        let ticks = Counter::new();
        let count = ticks.clone();
        let tick = move |_: &mut cabrank::Context<'_>| {
            count.add(1);
            ControlFlow::Continue(())
        };
        pool.handles().every(Duration::from_millis(5), tick).unwrap();
        let start = Instant::now();
        while start.elapsed() < soak() {
            exchange(&mut peer);
        }
        // A wait with a time-out is not extended without bound by what interrupts it.
        let left = pool.join_timeout(Duration::from_millis(100)).unwrap();
        assert!(matches!(left, cabrank::Left::TimedOut));
        ticks.wait_for(10);
        while stopper.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        let interruptions = INTERRUPTIONS.load(Ordering::Relaxed);
        assert!(interruptions > 50, "{interruptions}");
        let report = pool.finish();
        let fine = |ending: &cabrank::Ending| {
            matches!(ending, cabrank::Ending::Left(cabrank::Left::Shutdown))
        };
        assert!(report.threads.iter().all(fine), "{:?}", report.threads);
        kill(own, None).unwrap();
    });
}
