//! `strace -c` attached to a process that runs.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::perf::{interrupt, stop};

pub(crate) struct Strace {
    child: Child,
}

impl Strace {
    pub(crate) fn attach(process: u32) -> Result<Strace, String> {
        let child = Command::new("strace")
            .args(["-c", "-f", "-q", "-p", &process.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start strace: {error}"))?;
        let mut strace = Strace { child };
        let start = Instant::now();
        while !is_traced(process) {
            let ended = strace.child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                return Err("strace could not attach to the server".into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(strace)
    }

    /// How many system calls there were.
    pub(crate) fn finish(mut self) -> Result<u64, String> {
        interrupt(&self.child)?;
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().ok_or("strace has no output")?;
        stderr.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text.lines().filter_map(calls).sum())
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// The calls in a line of the summary: per cent, seconds, microseconds per call, calls, errors if any, name.
fn calls(line: &str) -> Option<u64> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let is_total = fields.last() == Some(&"total");
    fields.first()?.parse::<f64>().ok().filter(|_| !is_total)?;
    fields.get(3)?.parse().ok()
}

/// Whether all threads of the process have a tracer.
fn is_traced(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    tasks.into_iter().flatten().flatten().all(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.is_none_or(|tracer| tracer.trim() != "0")
    })
}

const PATIENCE: Duration = Duration::from_secs(10);
