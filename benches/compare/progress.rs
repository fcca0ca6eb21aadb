//! Where a run is, on standard error: one line that is written over and over, or, where that is no terminal, a
//! line now and then.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

pub(crate) struct Progress {
    is_terminal: bool,
    start: Instant,
    /// Seconds that the whole run should take, and that what is done should have taken.
    expected: f64,
    done: f64,
    /// The last line that was for everybody.
    last: String,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            is_terminal: io::stderr().is_terminal(),
            start: Instant::now(),
            expected: 0.0,
            done: 0.0,
            last: String::new(),
        }
    }

    /// It begins, and should take so many seconds.
    pub(crate) fn expect(&mut self, seconds: f64) {
        (self.start, self.expected) = (Instant::now(), seconds);
        self.say(&format!("This takes about {}.", duration(seconds)));
    }

    /// `stage` changes seldom, `detail` often.
    pub(crate) fn show(&mut self, stage: &str, detail: &str) {
        let left = duration(self.left());
        if self.is_terminal {
            let line = format!("{stage}, {detail}; {left} left");
            let line: String = line.chars().take(WIDTH).collect();
            let _ = write!(io::stderr(), "\r{line:WIDTH$}").and_then(|()| io::stderr().flush());
        } else if self.last != stage {
            self.last = stage.into();
            let _ = writeln!(io::stderr(), "{stage}; {left} left");
        }
    }

    /// Something that should have taken so many seconds is over.
    pub(crate) fn advance(&mut self, expected: f64) {
        self.done += expected;
    }

    /// A sentence that is to stay.
    pub(crate) fn say(&self, sentence: &str) {
        self.clear();
        let _ = writeln!(io::stderr(), "{sentence}");
    }

    /// Seconds that are left, if all goes on as it went.
    fn left(&self) -> f64 {
        let rest = (self.expected - self.done).max(0.0);
        if self.done < 5.0 {
            return rest;
        }
        rest * self.start.elapsed().as_secs_f64() / self.done
    }

    fn clear(&self) {
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r{:WIDTH$}\r", "");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Seconds, as a person would say it.
fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    if whole < 100 { format!("{whole} s") } else { format!("{} min", whole.div_ceil(60)) }
}

const WIDTH: usize = 78;
