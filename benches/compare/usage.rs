//! CPU time and context switches of another process, as the kernel counts them.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// What a process has used so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) at: Instant,
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
    /// User and system time of all its threads.
    pub(crate) cpu: Duration,
}

impl Usage {
    pub(crate) fn of(process: u32) -> io::Result<Usage> {
        // The process's own clock: the sum over its threads up to this moment, where the schedstat files of
        // the threads that are running lag behind by up to a tick.
        let clock = clock_getcpuclockid(Pid::from_raw(process as i32))?;
        let cpu = Duration::from(clock_gettime(clock)?);
        let at = Instant::now();
        let (mut voluntary, mut involuntary) = (0, 0);
        for task in fs::read_dir(format!("/proc/{process}/task"))? {
            // A thread that has ended meanwhile.
            let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
            for line in status.lines() {
                let count = |rest: &str| rest.trim().parse::<u64>().unwrap_or(0);
                if let Some(rest) = line.strip_prefix("voluntary_ctxt_switches:") {
                    voluntary += count(rest);
                } else if let Some(rest) = line.strip_prefix("nonvoluntary_ctxt_switches:") {
                    involuntary += count(rest);
                }
            }
        }
        Ok(Usage { at, voluntary, involuntary, cpu })
    }
}
