//! The load: many connections on one thread, in a process of its own.
//!
//! It says `connected`, then `begin` and `end` where the measured window lies, and goes on until its standard
//! input has something to read: so whoever counts what the server uses meanwhile need not hurry. Then it says
//! what came of it.

mod clients;
mod closed;
mod open;
mod outcome;
mod random;
mod window;

use std::io::{self, Write};

use crate::address::Address;
use clients::Clients;
pub(crate) use outcome::{LAST_LINE, Outcome};
use window::Window;

/// What to send, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) address: Address,
    /// Connections that requests are sent on.
    pub(crate) connections: usize,
    /// Connections beside them on which nothing happens.
    pub(crate) idle: usize,
    pub(crate) size: usize,
    /// Seconds that are not measured.
    pub(crate) warm_up: f64,
    pub(crate) seconds: f64,
    pub(crate) pace: Pace,
    /// How many of a hundred requests begin with `B`, which blocks their handler.
    pub(crate) block_percent: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each connection sends when it has its answer.
    Closed,
    /// `rate` requests per second at random times of their own, whatever the server does, always `burst` of
    /// them at one instant.
    Open { rate: f64, burst: usize },
}

impl Load {
    /// The command line that makes another process run this load.
    pub(crate) fn to_args(&self) -> Vec<String> {
        let mut args = vec!["--load".into(), self.address.to_string()];
        let mut option = |name: &str, value: String| args.extend([name.into(), value]);
        option("--connections", self.connections.to_string());
        option("--idle", self.idle.to_string());
        option("--size", self.size.to_string());
        option("--warm-up", self.warm_up.to_string());
        option("--seconds", self.seconds.to_string());
        option("--block-percent", self.block_percent.to_string());
        if let Pace::Open { rate, burst } = self.pace {
            option("--rate", rate.to_string());
            option("--burst", burst.to_string());
        }
        args
    }

    pub(crate) fn run(&self) -> io::Result<()> {
        // The default is 50 us, by which each wait for the next request would be late. Best effort: how late
        // requests are is measured anyway.
        let _ = nix::sys::prctl::set_timerslack(1);
        let mut clients = Clients::connect(self)?;
        say("connected")?;
        let mut window = Window::new(self.warm_up, self.seconds)?;
        match self.pace {
            Pace::Closed => closed::run(&mut clients, &mut window)?,
            Pace::Open { rate, burst } => open::run(&mut clients, &mut window, rate, burst)?,
        }
        say(window.outcome())
    }
}

fn say(line: impl std::fmt::Display) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}
