//! How near does the pool come to one bare epoll loop with the same handler?
//!
//! ```text
//! cargo bench --bench limit -- [--rounds 7] [--seconds 2] [--rate R] [--threads 4] [--work-us U]
//!                              [--block-us U --block-percent P] [NAME …]
//! ```
//!
//! Every contestant is a fresh process, every load another, and the rounds are interleaved; what counts
//! is the ratio to the bare loop of the same round. Without `--rate` the loop is closed (64 connections,
//! 64 bytes): the peak. With it requests fall due at random times, whatever the server does. With
//! `--block-percent` so many of a hundred handlers block for `--block-us`; latencies are those of the others.

#[path = "../../examples/echo/connection.rs"]
mod connection;
mod contestants;
#[path = "../../examples/echo/load.rs"]
mod load;
mod queue_pool;
#[path = "../../examples/echo/switches.rs"]
mod switches;
mod tokio_echo;

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use lexopt::prelude::*;

use connection::Cost;
use contestants::Contestant;
use load::{Address, Load, Outcome};
use switches::Usage;

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::parse()?;
    match options.role.take() {
        Some(Role::Server(contestant)) => {
            contestants::serve(contestant, options.threads, options.cost)
        }
        Some(Role::Load) => Ok(load::run(&options.load, std::io::stdout())?),
        None => compare(&options),
    }
}

struct Options {
    role: Option<Role>,
    rounds: usize,
    threads: usize,
    cost: Cost,
    load: Load,
    contestants: Vec<Contestant>,
}

enum Role {
    Server(Contestant),
    Load,
}

impl Options {
    fn parse() -> Result<Options, lexopt::Error> {
        let mut parser = lexopt::Parser::from_env();
        let mut options = Options {
            role: None,
            rounds: 7,
            threads: 4,
            cost: Cost::default(),
            load: Load { seconds: 2.0, ..Load::default() },
            contestants: Vec::new(),
        };
        let mut smoke = true;
        while let Some(argument) = parser.next()? {
            match argument {
                // What `cargo bench` adds; without it, `cargo test --benches` wants a short run.
                Long("bench") => smoke = false,
                Long("server") => {
                    let contestant = parser.value()?.parse_with(Contestant::by_name)?;
                    options.role = Some(Role::Server(contestant));
                }
                Long("load") => options.role = Some(Role::Load),
                Long("unix") => options.load.address = Address::Unix(parser.value()?.into()),
                Long("addr") => options.load.address = Address::Tcp(parser.value()?.parse()?),
                Long("rounds") => options.rounds = parser.value()?.parse()?,
                Long("threads") => options.threads = parser.value()?.parse()?,
                Long("work-us") => options.cost.work = microseconds(&mut parser)?,
                Long("block-us") => options.cost.block = microseconds(&mut parser)?,
                Long("seconds") => options.load.seconds = parser.value()?.parse()?,
                Long("connections") => options.load.connections = parser.value()?.parse()?,
                Long("size") => options.load.size = parser.value()?.parse()?,
                Long("block-percent") => options.load.block_percent = parser.value()?.parse()?,
                Long("rate") => options.load.rate = Some(parser.value()?.parse()?),
                Value(name) => options.contestants.push(name.parse_with(Contestant::by_name)?),
                _ => return Err(argument.unexpected()),
            }
        }
        options.load.check()?;
        if smoke && options.role.is_none() {
            options.rounds = 1;
            options.load.seconds = 0.2;
        }
        if options.contestants.is_empty() {
            options.contestants = Contestant::ALL.to_vec();
        } else if !options.contestants.contains(&Contestant::Bare) {
            options.contestants.insert(0, Contestant::Bare);
        }
        Ok(options)
    }
}

fn microseconds(parser: &mut lexopt::Parser) -> Result<Duration, lexopt::Error> {
    Ok(Duration::from_micros(parser.value()?.parse()?))
}

/// One contestant in one round.
#[derive(Clone, Copy)]
struct Measured {
    outcome: Outcome,
    usage: Usage,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.outcome.requests as f64 / self.outcome.seconds
    }

    fn per_request(&self, total: f64) -> f64 {
        total / self.outcome.requests.max(1) as f64
    }
}

fn compare(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut rounds: Vec<Vec<Measured>> = Vec::new();
    for round in 1..=options.rounds {
        let mut measured = Vec::new();
        for &contestant in &options.contestants {
            eprint!("\rround {round} of {}: {:<24}", options.rounds, contestant.name());
            measured.push(measure(contestant, options)?);
        }
        rounds.push(measured);
    }
    eprintln!("\r{:60}\r", "");
    println!(
        "{:<12} {:>10} {:>7} {:>15} {:>8} {:>8} {:>8} {:>9} {:>9}",
        "contestant",
        "requests/s",
        "ratio",
        "(least..most)",
        "CPU us",
        "vol.sw",
        "invol.",
        "p50 us",
        "p99 us"
    );
    for (index, contestant) in options.contestants.iter().enumerate() {
        let of = |figure: &dyn Fn(&Measured) -> f64| {
            median(rounds.iter().map(|round| figure(&round[index])).collect())
        };
        let mut ratios: Vec<f64> =
            rounds.iter().map(|round| round[index].rate() / round[0].rate()).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "{:<12} {:>10.0} {:>7.3} {:>15} {:>8.2} {:>8.4} {:>8.4} {:>9.1} {:>9.1}",
            contestant.name(),
            of(&Measured::rate),
            median(ratios.clone()),
            format!("({:.3}..{:.3})", ratios[0], ratios[ratios.len() - 1]),
            of(&|m| m.per_request(m.usage.cpu.as_secs_f64() * 1e6)),
            of(&|m| m.per_request(m.usage.voluntary as f64)),
            of(&|m| m.per_request(m.usage.involuntary as f64)),
            of(&|m| m.outcome.p50 as f64 / 1e3),
            of(&|m| m.outcome.p99 as f64 / 1e3),
        );
    }
    Ok(())
}

fn measure(contestant: Contestant, options: &Options) -> Result<Measured, Box<dyn Error>> {
    let threads = options.threads.to_string();
    let work = options.cost.work.as_micros().to_string();
    let block = options.cost.block.as_micros().to_string();
    let server = ["--server", contestant.name(), "--threads", &threads];
    let costs = ["--work-us", &work, "--block-us", &block];
    let mut server = Process::start(&[&server[..], &costs].concat())?;
    let address = server.line()?.parse()?;
    let load = Load { address: Address::Tcp(address), ..options.load.clone() };
    let args = load.to_args();
    let mut client = Process::start(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
    client.line()?;
    let before = server.usage()?;
    let outcome = client.line()?.parse()?;
    let usage = server.usage()?.since(before);
    client.end()?;
    server.end()?;
    Ok(Measured { outcome, usage })
}

/// A child of ours that answers lines with lines, and ends with its input.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(args: &[&str]) -> Result<Process, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Process { child, input, output })
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("a child process ended: {}", self.child.wait()?).into());
        }
        Ok(line.trim().into())
    }

    fn usage(&mut self) -> Result<Usage, Box<dyn Error>> {
        writeln!(self.input.as_mut().ok_or("no input")?)?;
        let line = self.line()?;
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next().ok_or("too few numbers");
        Ok(Usage {
            voluntary: next()??,
            involuntary: next()??,
            cpu: Duration::from_nanos(next()??),
        })
    }

    fn end(mut self) -> Result<(), Box<dyn Error>> {
        drop(self.input.take());
        self.child.wait()?;
        Ok(())
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
