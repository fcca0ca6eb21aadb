//! Counting what a server does while it is measured: in a round of its own, because counting costs time.

mod perf;
mod strace;

use std::process::Command;

pub(crate) use perf::split_supported;

/// How to count.
pub(crate) enum Counting {
    /// These events of `perf stat`.
    Perf(Vec<String>),
    /// All system calls, by `strace -c`: slow, but it needs no privileges of perf's.
    Strace,
}

/// A running count.
pub(crate) enum Counter {
    Perf(perf::Perf),
    Strace(strace::Strace),
}

/// What was counted.
pub(crate) enum Counts {
    /// By event, within so many seconds.
    Within(f64, Vec<(String, f64)>),
    /// From the first request to the last, and what it takes to make and to close the connections.
    Overall(Vec<(String, f64)>),
}

impl Counting {
    /// The best way there is of counting system calls.
    ///
    /// # Errors
    /// A sentence that says why there is none.
    pub(crate) fn of_syscalls() -> Result<Counting, String> {
        match split_supported(&[SYSCALLS]) {
            Ok((supported, _)) if !supported.is_empty() => return Ok(Counting::Perf(supported)),
            // No perf, or none that may count them.
            _ => {}
        }
        let strace = Command::new("strace").args(["-c", "-f", "-o", "/dev/null", "true"]).output();
        if strace.is_ok_and(|output| output.status.success()) {
            return Ok(Counting::Strace);
        }
        Err(format!("perf cannot count {SYSCALLS} here, and strace does not run either"))
    }

    pub(crate) fn attach(&self, process: u32) -> Result<Counter, String> {
        match self {
            Counting::Perf(events) => perf::Perf::attach(process, events).map(Counter::Perf),
            Counting::Strace => strace::Strace::attach(process).map(Counter::Strace),
        }
    }
}

impl Counter {
    /// The measured window opens.
    pub(crate) fn begin(&mut self) -> Result<(), String> {
        match self {
            Counter::Perf(perf) => perf.switch_on(),
            Counter::Strace(_) => Ok(()),
        }
    }

    /// It closes.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        match self {
            Counter::Perf(perf) => perf.switch_off(),
            Counter::Strace(_) => Ok(()),
        }
    }

    /// Stops counting; the load must have ended.
    pub(crate) fn finish(self) -> Result<Counts, String> {
        match self {
            Counter::Perf(perf) => {
                let seconds = perf.seconds();
                Ok(Counts::Within(seconds, perf.finish()?))
            }
            Counter::Strace(strace) => {
                Ok(Counts::Overall(vec![(SYSCALLS.into(), strace.finish()? as f64)]))
            }
        }
    }
}

/// The tracepoint that every system call passes.
const SYSCALLS: &str = "raw_syscalls:sys_enter";
