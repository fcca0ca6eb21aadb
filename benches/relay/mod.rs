//! Two threads that take turns, each on a CPU of its own or both on one.
//!
//! Left to the scheduler they are now on one CPU and now on two, and the figure is a mixture of two figures.

use std::sync::Barrier;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use cabrank::sys::sched;

/// Where two threads can be put: the names, and their CPUs. On a machine with one CPU there is one place.
pub(crate) fn places() -> Vec<(&'static str, [usize; 2])> {
    let cpus = sched::allowed_cpus();
    let one = cpus.first().map(|&cpu| ("one CPU", [cpu, cpu]));
    let two = cpus.get(1).map(|&other| ("two CPUs", [cpus[0], other]));
    one.into_iter().chain(two).collect()
}

/// Runs two closures on two threads, `rounds` times each: `ping` gives the turn away and waits to have it
/// back, `pong` waits for it and gives it back. Each is told of the other's thread. Returns how long it took
/// in one direction, all in all.
pub(crate) fn ping_pong(
    cpus: [usize; 2],
    rounds: u64,
    mut ping: impl FnMut(&Thread) + Send,
    mut pong: impl FnMut(&Thread) + Send,
) -> Duration {
    let start = &Barrier::new(2);
    thread::scope(|threads| {
        let pinging = threads.spawn(move || {
            let first = thread::current();
            let ponging = threads.spawn(move || {
                sched::pin_to_cpu(cpus[1]).expect("a CPU that is allowed");
                start.wait();
                (0..rounds).for_each(|_| pong(&first));
            });
            sched::pin_to_cpu(cpus[0]).expect("a CPU that is allowed");
            start.wait();
            let begun = Instant::now();
            (0..rounds).for_each(|_| ping(ponging.thread()));
            begun.elapsed() / 2
        });
        pinging.join().expect("no panic")
    })
}
