//! The command line.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::prelude::*;

use crate::address::Address;
use crate::connection::{BUFFER, Cost};
use crate::contestants::{Contestant, Setup};
use crate::load::{Load, Pace};
use crate::regimes::{self, Regime};

pub(crate) const HELP: &str = "\
Compares event loops: requests per second, CPU, switches, system calls and latency, side by side.

  cargo bench --bench compare -- [OPTION …] [CONTESTANT …]

  CONTESTANT              only these (bare is always added); --list names them all
  --regimes A,B           only these kinds of load; --list names them all
  --rounds N              rounds, interleaved, each with fresh processes (default 5; half as many for
                          bursts and pool-size)
  --seconds S             measured seconds of each (default 1), after a warm-up of 0.2
  --threads N             threads of each server (default 4; blocking and one-active 8)
  --connections C         connections with requests on them (default 64)
  --size B                bytes of a request (default 64)
  --rate R                requests per second of the light load (default 5000)
  --work-us U             CPU time burned by every handler (default 0; handler-time has its own)
  --block-us U            with --block-percent: the blocking regime with this instead of its own
  --block-percent P       how many of a hundred handlers block; --rate is theirs too (default 2000)
  --json FILE             all figures of all rounds, as JSON
  --perf                  one more round with perf stat attached to each server
  --syscalls on|off       one more round in which system calls are counted (default on)
  --quick                 a little of everything in less than a minute
  --list                  the contestants and the regimes
  --help                  this text
";

pub(crate) enum Command {
    Help,
    List,
    Compare(Options),
    /// The child processes.
    Serve(Contestant, Setup),
    Load(Load),
}

/// What to compare.
#[derive(Clone)]
pub(crate) struct Options {
    /// Those asked for by name.
    pub(crate) named: Vec<Contestant>,
    pub(crate) regimes: Vec<&'static Regime>,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) warm_up: f64,
    pub(crate) threads: Option<usize>,
    pub(crate) connections: usize,
    pub(crate) size: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) work_us: u64,
    /// Microseconds and per cent, in place of those of the blocking regime.
    pub(crate) blocking: Option<(u64, u32)>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) perf: bool,
    pub(crate) syscalls: bool,
    pub(crate) quick: bool,
}

impl Options {
    /// Who takes part, unless a regime says otherwise. The limit comes first.
    pub(crate) fn contestants(&self) -> Vec<Contestant> {
        if self.quick && self.named.is_empty() {
            return FEW.to_vec();
        }
        self.everybody()
    }

    /// The same without regard to the time it takes.
    pub(crate) fn everybody(&self) -> Vec<Contestant> {
        let is_chosen = |contestant: &Contestant| match contestant {
            Contestant::Bare => true,
            // Only where it is asked for.
            Contestant::Spin => self.named.contains(contestant),
            // They have to be built, which is not quick.
            peer if self.quick && peer.is_peer() => self.named.contains(contestant),
            _ => self.named.is_empty() || self.named.contains(contestant),
        };
        Contestant::ALL.into_iter().filter(is_chosen).collect()
    }
}

impl Command {
    pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
        let mut parser = lexopt::Parser::from_iter(args);
        parse(&mut parser).map_err(|error| error.to_string())
    }
}

fn parse(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut options = Given::default();
    // What `cargo bench` adds; without it, `cargo test --benches` wants a short run.
    let mut is_bench = false;
    while let Some(argument) = parser.next()? {
        let name = match argument {
            Short('h') => "help".to_string(),
            Long(name) => name.to_string(),
            Value(name) => {
                let name = name.string()?;
                let contestant = Contestant::by_name(&name).ok_or_else(|| {
                    format!("{name}: no such contestant; expected {}", contestants())
                })?;
                options.named.push(contestant);
                continue;
            }
            Short(_) => return Err(argument.unexpected()),
        };
        let mut value = Input { parser, option: &name };
        match name.as_str() {
            "server" => return serve(value),
            "load" => return load(value),
            "bench" => is_bench = true,
            "help" => return Ok(Command::Help),
            "list" => return Ok(Command::List),
            "regimes" => options.regimes = value.regimes()?,
            "rounds" => options.rounds = Some(value.number(1..=1000)?),
            "seconds" => options.seconds = Some(value.number(0.05..=3600.0)?),
            "threads" => options.threads = Some(value.number(THREADS)?),
            "connections" => options.connections = Some(value.number(CONNECTIONS)?),
            "size" => options.size = Some(value.number(SIZE)?),
            "rate" => options.rate = Some(value.number(RATE)?),
            "work-us" => options.work_us = value.number(MICROSECONDS)?,
            "block-us" => options.block_us = Some(value.number(1..=10_000_000)?),
            "block-percent" => options.block_percent = Some(value.number(1..=100)?),
            "json" => options.json = Some(value.parser.value()?.into()),
            "perf" => options.perf = true,
            "syscalls" => options.no_syscalls = !value.switch()?,
            "quick" => options.quick = true,
            _ => return Err(format!("--{name}: no such option; --help lists them").into()),
        }
    }
    options.quick |= !is_bench;
    Ok(Command::Compare(options.complete()?))
}

/// What was said.
#[derive(Default)]
struct Given {
    named: Vec<Contestant>,
    regimes: Vec<&'static Regime>,
    rounds: Option<usize>,
    seconds: Option<f64>,
    threads: Option<usize>,
    connections: Option<usize>,
    size: Option<usize>,
    rate: Option<f64>,
    work_us: u64,
    block_us: Option<u64>,
    block_percent: Option<u32>,
    json: Option<PathBuf>,
    perf: bool,
    no_syscalls: bool,
    quick: bool,
}

impl Given {
    fn complete(self) -> Result<Options, String> {
        let blocking = match (self.block_us, self.block_percent) {
            (Some(time), Some(percent)) => Some((time, percent)),
            (None, None) => None,
            (Some(_), None) => return Err("--block-us needs --block-percent, from 1 to 100".into()),
            (None, Some(_)) => return Err("--block-percent needs --block-us".into()),
        };
        let all = || regimes::ALL.iter().collect();
        let regimes = if self.regimes.is_empty() { all() } else { self.regimes };
        let has = |name| regimes.iter().any(|regime: &&Regime| regime.name == name);
        if blocking.is_some() && !has("blocking") {
            return Err("--block-us: add blocking to --regimes, it is for nothing else".into());
        }
        if self.rate.is_some() && !has("light") && blocking.is_none() {
            return Err(
                "--rate: add light to --regimes, or say --block-us and --block-percent".into()
            );
        }
        let quick = self.quick;
        Ok(Options {
            named: self.named,
            regimes,
            rounds: self.rounds.unwrap_or(if quick { 1 } else { 5 }),
            seconds: self.seconds.unwrap_or(if quick { 0.2 } else { 1.0 }),
            warm_up: if quick { 0.05 } else { 0.2 },
            threads: self.threads,
            connections: self.connections.unwrap_or(64),
            size: self.size.unwrap_or(64),
            rate: self.rate,
            work_us: self.work_us,
            blocking,
            json: self.json,
            perf: self.perf,
            syscalls: !self.no_syscalls,
            quick,
        })
    }
}

/// A server, as its contract has it.
fn serve(mut input: Input<'_>) -> Result<Command, lexopt::Error> {
    let name = input.text()?;
    let contestant = Contestant::by_name(&name).ok_or_else(|| input.wrong(&name, contestants()))?;
    let mut setup = Setup { threads: 1, cost: Cost::default(), unix: None };
    while let Some(option) = input.parser.next()? {
        let Long(name) = option else { return Err(option.unexpected()) };
        let name = name.to_string();
        let mut value = Input { parser: input.parser, option: &name };
        match name.as_str() {
            "threads" => setup.threads = value.number(THREADS)?,
            "work-us" => setup.cost.work = Duration::from_micros(value.number(MICROSECONDS)?),
            "block-us" => setup.cost.block = Duration::from_micros(value.number(MICROSECONDS)?),
            "unix" => setup.unix = Some(value.parser.value()?.into()),
            _ => return Err(format!("--{name}: no option of a server").into()),
        }
    }
    Ok(Command::Serve(contestant, setup))
}

/// A load; the counterpart of [`Load::to_args`].
fn load(mut input: Input<'_>) -> Result<Command, lexopt::Error> {
    let Ok(address) = input.text()?.parse::<Address>();
    let mut load = Load {
        address,
        connections: 1,
        idle: 0,
        size: 1,
        warm_up: 0.0,
        seconds: 1.0,
        pace: Pace::Closed,
        block_percent: 0,
    };
    let (mut rate, mut burst) = (None, 1);
    while let Some(option) = input.parser.next()? {
        let Long(name) = option else { return Err(option.unexpected()) };
        let name = name.to_string();
        let mut value = Input { parser: input.parser, option: &name };
        match name.as_str() {
            "connections" => load.connections = value.number(CONNECTIONS)?,
            "idle" => load.idle = value.number(0..=1_000_000)?,
            "size" => load.size = value.number(SIZE)?,
            "warm-up" => load.warm_up = value.number(0.0..=3600.0)?,
            "seconds" => load.seconds = value.number(0.0..=3600.0)?,
            "block-percent" => load.block_percent = value.number(0..=100)?,
            "rate" => rate = Some(value.number(RATE)?),
            "burst" => burst = value.number(CONNECTIONS)?,
            _ => return Err(format!("--{name}: no option of a load").into()),
        }
    }
    if let Some(rate) = rate {
        load.pace = Pace::Open { rate, burst };
    }
    Ok(Command::Load(load))
}

/// An option that waits for its value.
struct Input<'a> {
    parser: &'a mut lexopt::Parser,
    option: &'a str,
}

impl Input<'_> {
    fn text(&mut self) -> Result<String, lexopt::Error> {
        self.parser.value()?.string()
    }

    fn number<T: FromStr + PartialOrd + Display>(
        &mut self,
        range: RangeInclusive<T>,
    ) -> Result<T, lexopt::Error> {
        let text = self.text()?;
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| self.wrong(&text, format!("a number from {least} to {most}")))
    }

    fn switch(&mut self) -> Result<bool, lexopt::Error> {
        match self.text()?.as_str() {
            "on" => Ok(true),
            "off" => Ok(false),
            other => Err(self.wrong(other, "on or off")),
        }
    }

    fn regimes(&mut self) -> Result<Vec<&'static Regime>, lexopt::Error> {
        let text = self.text()?;
        let mut chosen = Vec::new();
        for name in text.split(',') {
            let names: Vec<&str> = regimes::ALL.iter().map(|regime| regime.name).collect();
            let regime = Regime::by_name(name);
            let regime = regime.ok_or_else(|| self.wrong(name, names.join(", ")))?;
            if !chosen.iter().any(|other: &&Regime| other.name == regime.name) {
                chosen.push(regime);
            }
        }
        Ok(chosen)
    }

    fn wrong(&self, value: &str, expected: impl Display) -> lexopt::Error {
        format!("--{} {value}: expected {expected}", self.option).into()
    }
}

fn contestants() -> String {
    Contestant::ALL.map(Contestant::name).join(", ")
}

/// Who takes part in most regimes of a quick run.
const FEW: [Contestant; 4] =
    [Contestant::Bare, Contestant::Default, Contestant::Edge, Contestant::Tokio];

const THREADS: RangeInclusive<usize> = 1..=1000;
const CONNECTIONS: RangeInclusive<usize> = 1..=10_000;
/// What a handler reads at once, so that a request is one turn of it.
const SIZE: RangeInclusive<usize> = 1..=BUFFER;
const RATE: RangeInclusive<f64> = 1.0..=10_000_000.0;
const MICROSECONDS: RangeInclusive<u64> = 0..=10_000_000;
