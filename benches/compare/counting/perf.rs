//! `perf stat` attached to a process that runs, and switched on for the measured window only.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

pub(crate) struct Perf {
    child: Child,
    fifos: Fifos,
    on: Option<Instant>,
    seconds: f64,
}

impl Perf {
    pub(crate) fn attach(process: u32, events: &[String]) -> Result<Perf, String> {
        let fifos = Fifos::new().map_err(|error| format!("cannot make a fifo: {error}"))?;
        let child = Command::new("perf")
            .args(["stat", "-x", ",", "-D", "-1", "-e", &events.join(",")])
            .args(["-p", &process.to_string(), "--control", &fifos.option()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start perf: {error}"))?;
        let mut perf = Perf { child, fifos, on: None, seconds: 0.0 };
        // Answered when it has attached to all threads.
        perf.command("ping")?;
        Ok(perf)
    }

    pub(crate) fn switch_on(&mut self) -> Result<(), String> {
        self.command("enable")?;
        self.on = Some(Instant::now());
        Ok(())
    }

    pub(crate) fn switch_off(&mut self) -> Result<(), String> {
        self.command("disable")?;
        self.seconds = self.on.map_or(0.0, |on| on.elapsed().as_secs_f64());
        Ok(())
    }

    /// How long it was on.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The counts of those events that were counted.
    pub(crate) fn finish(mut self) -> Result<Vec<(String, f64)>, String> {
        interrupt(&self.child)?;
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().ok_or("perf has no output")?;
        stderr.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text.lines().filter_map(count).collect())
    }

    /// Sends a command and waits until it has been carried out.
    fn command(&mut self, command: &str) -> Result<(), String> {
        let mut control = &self.fifos.control;
        let written = control.write_all(format!("{command}\n").as_bytes());
        written.map_err(|error| format!("perf: {error}"))?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let mut fds = [PollFd::new(self.fifos.answer.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut fds, PollTimeout::from(50_u8));
            if ready.map_err(|error| error.to_string())? > 0 {
                let mut answer = [0; 64];
                let mut source = &self.fifos.answer;
                source.read(&mut answer).map_err(|error| error.to_string())?;
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("perf ended with {status}{}", self.complaint()));
            }
        }
        Err(format!("perf did not answer {command:?} within {PATIENCE:?}"))
    }

    /// The first line of what it said before it ended.
    fn complaint(&mut self) -> String {
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut();
        let read = stderr.map(|stderr| stderr.read_to_string(&mut text));
        let line = text.lines().find(|line| !line.trim().is_empty() && *line != "Error:");
        read.and(line).map_or(String::new(), |line| format!(": {line}"))
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// Which of these events this machine and user can count, and which not.
///
/// # Errors
/// A sentence if there is no perf at all.
pub(crate) fn split_supported(events: &[&str]) -> Result<(Vec<String>, Vec<String>), String> {
    let can_count = |event: &str| -> Result<bool, String> {
        let output = Command::new("perf").args(["stat", "-x", ",", "-e", event, "true"]).output();
        match output {
            Ok(output) if !output.status.success() => Ok(false),
            Ok(output) => Ok(String::from_utf8_lossy(&output.stderr)
                .lines()
                .any(|line| count(line).is_some())),
            Err(error) => Err(format!("perf does not run here ({error})")),
        }
    };
    let (mut supported, mut unsupported) = (Vec::new(), Vec::new());
    for event in events {
        let list = if can_count(event)? { &mut supported } else { &mut unsupported };
        list.push((*event).into());
    }
    Ok((supported, unsupported))
}

/// Event and count of a line such as `29,,raw_syscalls:sys_enter,1075326,100.00,,`.
fn count(line: &str) -> Option<(String, f64)> {
    let mut fields = line.split(',');
    let value = fields.next()?.parse().ok()?;
    let (unit, event) = (fields.next()?, fields.next()?);
    // Times come in milliseconds; everything here is in microseconds.
    if unit == "msec" {
        Some((format!("{event} us"), value * 1e3))
    } else {
        Some((event.into(), value))
    }
}

/// The pair of fifos by which perf is switched.
struct Fifos {
    folder: PathBuf,
    control: File,
    answer: File,
}

impl Fifos {
    fn new() -> std::io::Result<Fifos> {
        let folder = std::env::temp_dir().join(format!("cabrank-perf-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let open = |name| {
            let path = folder.join(name);
            mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            // Both ways, so that opening does not wait for the other end.
            OpenOptions::new().read(true).write(true).open(&path)
        };
        let files = open("control").and_then(|control| Ok((control, open("answer")?)));
        match files {
            Ok((control, answer)) => Ok(Fifos { folder, control, answer }),
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                Err(error)
            }
        }
    }

    fn option(&self) -> String {
        let folder = self.folder.display();
        format!("fifo:{folder}/control,{folder}/answer")
    }
}

impl Drop for Fifos {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Tells a tool to stop and to say what it has found.
pub(crate) fn interrupt(child: &Child) -> Result<(), String> {
    let process = Pid::from_raw(child.id() as i32);
    kill(process, Signal::SIGINT).map_err(|error| error.to_string())
}

/// Ends a tool that may have ended already.
pub(crate) fn stop(child: &mut Child) {
    if let Ok(None) = child.try_wait() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// With many threads attaching takes a while.
const PATIENCE: Duration = Duration::from_secs(10);
