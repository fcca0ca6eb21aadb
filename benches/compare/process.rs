//! Child processes that talk in lines and end with their input.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub(crate) struct Process {
    /// What it is called in errors.
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Process, String> {
        let command =
            Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child =
            command.map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Process { name: name.into(), child, input, output })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints within the time.
    pub(crate) fn line(&mut self, within: Duration) -> Result<String, String> {
        let name = &self.name;
        if self.output.buffer().is_empty() {
            let mut fds = [PollFd::new(self.output.get_ref().as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
            let ready = poll(&mut fds, timeout).map_err(|error| error.to_string())?;
            if ready == 0 {
                return Err(format!("{name} has said nothing for {within:?}"));
            }
        }
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => {
                let status = self.child.wait().map_err(|error| error.to_string())?;
                Err(format!("{name} ended too soon: {status}"))
            }
            Ok(_) => Ok(line.trim_end().into()),
            Err(error) => Err(format!("{name}: {error}")),
        }
    }

    pub(crate) fn expect(&mut self, line: &str, within: Duration) -> Result<(), String> {
        let said = self.line(within)?;
        if said == line {
            return Ok(());
        }
        Err(format!("{} said {said:?} instead of {line:?}", self.name))
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("its input is closed")?;
        // All at once: it may be gone as soon as it has seen the beginning.
        let written = input.write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| format!("{}: {error}", self.name))
    }

    /// Closes its input and waits for its end.
    pub(crate) fn end(mut self) -> Result<(), String> {
        drop(self.input.take());
        let start = Instant::now();
        loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{} ended with {status}", self.name)),
                None if start.elapsed() > PATIENCE => {
                    return Err(format!("{} did not end with its input", self.name));
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After `end` there is nothing left to kill.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// How long to wait for what should come at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
