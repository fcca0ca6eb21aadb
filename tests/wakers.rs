//! Wake-ups: they coalesce, are never lost, and may come from a signal handler.
#![allow(unsafe_code)] // a signal handler cannot be installed safely

mod util;

use std::io::Write;
use std::sync::{OnceLock, mpsc};

use cabrank::{Context, Interest, Next, Pool, Waker};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use util::{Probe, echo, in_own_process, ping, pool, read_some, wait_until};

/// How many times the calling thread has asked the kernel to write; `None` if it does not count them.
fn writes() -> Option<u64> {
    let account = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    let line = account.lines().find(|line| line.starts_with("syscw:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn ten_thousand_wake_ups_of_a_busy_thread_are_one() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let (inside, entered) = mpsc::channel();
    let (leave, told) = mpsc::channel::<()>();
    let (probe, mut peer) = Probe::pair(move |stream, _, _: &mut Context<'_>| {
        let _ = read_some(stream);
        inside.send(()).unwrap();
        told.recv().unwrap();
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(b"x").unwrap();
    entered.recv().unwrap();
    let waits = pool.metrics().total().waits;
    let waker = pool.waker();
    let before = writes();
    for _ in 0..10_000 {
        waker.wake();
    }
    match before.zip(writes()) {
        Some((before, after)) => assert_eq!(after - before, 1, "system calls to wake"),
        None => println!("skipped: this kernel does not count a thread's writes"),
    }
    leave.send(()).unwrap();
    // One wait for the wake-up, one for each ping.
    let (probe, mut other) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    ping(&mut other);
    ping(&mut other);
    assert!(pool.metrics().total().waits - waits <= 3, "{}", pool.metrics());
}

#[test]
fn a_waker_works_in_a_signal_handler() {
    static WAKER: OnceLock<Waker> = OnceLock::new();
    extern "C" fn wake(_: i32) {
        if let Some(waker) = WAKER.get() {
            waker.wake();
        }
    }
    in_own_process("a_waker_works_in_a_signal_handler", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        WAKER.set(pool.waker()).unwrap();
        let action = SigAction::new(SigHandler::Handler(wake), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler reads what has been set before, and wakes: an exchange and a `write`.
        unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
        // On this thread.
        for _ in 0..100 {
            let waits = pool.metrics().total().waits;
            raise(Signal::SIGUSR1).unwrap();
            wait_until("a wait that ends", || pool.metrics().total().waits > waits);
        }
        assert_eq!(pool.metrics().total().events, 0, "a wake-up is no event");
        // On any other, also one that waits or runs a handler.
        cabrank::sys::signalfd::block(&[Signal::SIGUSR1 as i32]).unwrap();
        for _ in 0..200 {
            nix::sys::signal::kill(nix::unistd::Pid::this(), Signal::SIGUSR1).unwrap();
            ping(&mut peer);
        }
        assert_eq!(pool.finish().metrics.total().events, 200);
    });
}
