//! What the program says. A reader that has gone away (`| head`) is no reason to stop or to panic.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

use cabrank::Metrics;

/// Prints a line.
macro_rules! say {
    ($($what:tt)*) => { $crate::output::print(format_args!($($what)*)) };
}
/// Prints a line for the user who is watching.
macro_rules! complain {
    ($($what:tt)*) => { $crate::output::report(format_args!($($what)*)) };
}
pub(crate) use {complain, say};

/// # Errors
/// Whatever keeps it from being written, such as a full disk.
pub(crate) fn print(line: Arguments<'_>) -> io::Result<()> {
    let mut output = io::stdout().lock();
    match writeln!(output, "{line}").and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

pub(crate) fn report(line: Arguments<'_>) {
    // There is nobody left to tell.
    let _ = writeln!(io::stderr(), "echo: {line}");
}

/// Prints what each thread did.
pub(crate) fn table(metrics: &Metrics) -> io::Result<()> {
    say!("{metrics}")?;
    say!("{LEGEND}")
}

/// A line that is written over and over; where that cannot be done, a line now and then.
pub(crate) struct Progress {
    is_terminal: bool,
    last: Instant,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { is_terminal: io::stderr().is_terminal(), last: Instant::now() }
    }

    pub(crate) fn show(&mut self, line: Arguments<'_>) {
        let mut output = io::stderr();
        if self.is_terminal {
            let _ = write!(output, "\r{line} ").and_then(|()| output.flush());
        } else if self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            let _ = writeln!(output, "{line}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r{:60}\r", "");
        }
    }
}

const LEGEND: &str = "\
idle: woken for nothing; shared: taken from what another thread fetched; noted: came while the handler ran; \
rescues: came in for a handler over its budget; departed: threads that have left";

const EVERY: Duration = Duration::from_millis(950);
