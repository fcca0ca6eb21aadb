//! Context switches and CPU time of this process, as the kernel counts them.

use std::fs;
use std::time::Duration;

/// What the process has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
    /// User and system time of all threads.
    pub(crate) cpu: Duration,
}

impl Usage {
    /// Of all threads that are there now. Zero where /proc is not to be read.
    pub(crate) fn now() -> Usage {
        let mut usage = Usage::default();
        let Ok(tasks) = fs::read_dir("/proc/self/task") else {
            return usage;
        };
        for task in tasks.flatten() {
            let Ok(status) = fs::read_to_string(task.path().join("status")) else {
                continue;
            };
            for line in status.lines() {
                let count = |rest: &str| rest.trim().parse::<u64>().unwrap_or(0);
                if let Some(rest) = line.strip_prefix("voluntary_ctxt_switches:") {
                    usage.voluntary += count(rest);
                } else if let Some(rest) = line.strip_prefix("nonvoluntary_ctxt_switches:") {
                    usage.involuntary += count(rest);
                }
            }
            // schedstat: time on the CPU in nanoseconds, time waiting for it, time slices.
            let Ok(stat) = fs::read_to_string(task.path().join("schedstat")) else {
                continue;
            };
            let on_cpu = stat.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0);
            usage.cpu += Duration::from_nanos(on_cpu);
        }
        usage
    }

    pub(crate) fn since(self, earlier: Usage) -> Usage {
        Usage {
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
            cpu: self.cpu.saturating_sub(earlier.cpu),
        }
    }
}
