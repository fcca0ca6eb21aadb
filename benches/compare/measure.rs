//! One figure: a fresh server, a fresh load, and what the server used while the load was measured.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::contestants::{Contestant, Setup};
use crate::counting::{Counter, Counting, Counts};
use crate::load::{LAST_LINE, Load, Outcome};
use crate::placement::Placement;
use crate::process::{PATIENCE, Process};
use crate::results::Sample;
use crate::usage::Usage;
use crate::{peers, target};

/// Starts servers and loads.
pub(crate) struct Laboratory {
    /// This program, which is also the servers and the load.
    program: PathBuf,
    /// The programs of those contestants that are not in this one.
    peers: Vec<(Contestant, PathBuf)>,
    placement: Placement,
}

impl Laboratory {
    pub(crate) fn new() -> Result<Laboratory, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        Ok(Laboratory { program, peers: Vec::new(), placement: Placement::new() })
    }

    /// Builds the program of a contestant that is not in this one.
    ///
    /// # Errors
    /// Why that cannot be done.
    pub(crate) fn build(&mut self, peer: Contestant) -> Result<(), String> {
        let program = peers::build(peer.name(), &target::directory())?;
        self.peers.push((peer, program));
        Ok(())
    }

    /// Measures the contestant under the load, whose address is still to be found.
    pub(crate) fn measure(
        &self,
        contestant: Contestant,
        setup: &Setup,
        load: &Load,
        counting: Option<&Counting>,
    ) -> Result<Measured, String> {
        let mut server = self.placement.server(load.pace, || self.server(contestant, setup))?;
        let Ok(address) = server.line(PATIENCE)?.parse();
        let mut counter = counting.map(|counting| counting.attach(server.id())).transpose()?;
        let load = Load { address, ..load.clone() };
        let start = || Process::start("the load", &self.program, load.to_args());
        let mut client = self.placement.load(load.pace, start)?;
        client.expect("connected", PATIENCE)?;
        client.expect("begin", PATIENCE + Duration::from_secs_f64(load.warm_up))?;
        counter.as_mut().map_or(Ok(()), Counter::begin)?;
        let before = usage(&server)?;
        client.expect("end", PATIENCE + Duration::from_secs_f64(load.seconds))?;
        let after = usage(&server)?;
        counter.as_mut().map_or(Ok(()), Counter::end)?;
        // Until now it has gone on as before, so that all of this lies in the same steady state.
        client.say("enough")?;
        let outcome = outcome(&mut client)?;
        client.end()?;
        let counts = counter.map(Counter::finish).transpose()?;
        server.end()?;
        let answered = outcome.answered as f64;
        let sample = sample(outcome, before, after)?;
        let counts = counts.map_or(Vec::new(), |counts| per_request(counts, &sample, answered));
        Ok(Measured { sample, counts })
    }

    fn server(&self, contestant: Contestant, setup: &Setup) -> Result<Process, String> {
        let name = contestant.name();
        if let Some((_, program)) = self.peers.iter().find(|(peer, _)| *peer == contestant) {
            return Process::start(name, program, setup.to_args());
        }
        let mut args: Vec<OsString> = vec!["--server".into(), name.into()];
        args.extend(setup.to_args());
        Process::start(name, &self.program, args)
    }
}

/// What one run came to.
pub(crate) struct Measured {
    pub(crate) sample: Sample,
    /// Event and count per request, if something was counted.
    pub(crate) counts: Vec<(String, f64)>,
}

fn usage(server: &Process) -> Result<Usage, String> {
    Usage::of(server.id()).map_err(|error| format!("cannot read what the server has used: {error}"))
}

fn outcome(client: &mut Process) -> Result<Outcome, String> {
    let mut text = String::new();
    loop {
        let line = client.line(PATIENCE)?;
        if line == LAST_LINE {
            return text.parse();
        }
        text.extend([line.as_str(), "\n"]);
    }
}

fn sample(outcome: Outcome, before: Usage, after: Usage) -> Result<Sample, String> {
    let Outcome { requests, seconds, latency, blocked, lag_us, .. } = outcome;
    if requests == 0 {
        return Err("no request was answered".into());
    }
    let requests_per_second = requests as f64 / seconds;
    // The usage was read at about the same times as the window opened and closed: rates compare, sums do not.
    let length = (after.at - before.at).as_secs_f64();
    let per_request = |used: f64| used / length / requests_per_second;
    let cpu = after.cpu.saturating_sub(before.cpu);
    Ok(Sample {
        requests,
        requests_per_second,
        cpu_us_per_request: per_request(cpu.as_secs_f64() * 1e6),
        voluntary_per_request: per_request(after.voluntary.saturating_sub(before.voluntary) as f64),
        involuntary_per_request: per_request(
            after.involuntary.saturating_sub(before.involuntary) as f64
        ),
        latency,
        blocked,
        generator_lag_us: lag_us,
    })
}

fn per_request(counts: Counts, sample: &Sample, answered: f64) -> Vec<(String, f64)> {
    let (counts, requests) = match counts {
        Counts::Within(seconds, counts) => (counts, seconds * sample.requests_per_second),
        Counts::Overall(counts) => (counts, answered),
    };
    counts.into_iter().map(|(event, count)| (event, count / requests)).collect()
}

/// Whether the generator was so late that it matters.
pub(crate) fn is_spoiled(sample: &Sample) -> bool {
    sample
        .generator_lag_us
        .is_some_and(|lag| lag > NEGLIGIBLE_LAG_US && lag > LAG_SHARE * sample.latency.p99)
}

/// A name for a Unix socket that nobody has, short enough for its address.
pub(crate) struct SocketPath(PathBuf);

impl SocketPath {
    pub(crate) fn new() -> SocketPath {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: a number of its own for each is all that is asked for.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("cabrank-compare-{}-{number}", std::process::id());
        SocketPath(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // A server that has not come so far has not made it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Lags below this are not worth a second round, whatever their share: on a quiet machine it is about 10.
const NEGLIGIBLE_LAG_US: f64 = 20.0;

/// Of the p99 that is measured.
const LAG_SHARE: f64 = 0.05;
