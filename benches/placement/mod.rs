//! Who asks on one CPU and who answers on another. Left to the scheduler they are now on one and now on two,
//! and the figure is a mixture of two figures.

use std::thread;
use std::time::{Duration, Instant};

use cabrank::sys::sched;

/// The CPUs for who asks and for who answers. The same if there is only one.
pub(crate) fn ends() -> [usize; 2] {
    let cpus = sched::allowed_cpus();
    [cpus[0], cpus[cpus.len() - 1]]
}

/// How long `code` takes, in a thread of its own on the given CPU.
pub(crate) fn timed_on(cpu: usize, code: impl FnOnce() + Send) -> Duration {
    let timed = || {
        sched::pin_to_cpu(cpu).expect("a CPU that is allowed");
        let begun = Instant::now();
        code();
        begun.elapsed()
    };
    thread::scope(|threads| threads.spawn(timed).join().expect("no panic"))
}
