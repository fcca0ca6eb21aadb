//! The command line.

use std::ffi::OsString;
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cabrank::{Builder, Deactivation, Order, Pinning, Pool};
use lexopt::prelude::*;

use crate::connection::Cost;
use crate::load::{Address, Load};

pub(crate) const HELP: &str = "\
An echo server on cabrank.

  --addr HOST:PORT        listen here (default 127.0.0.1:7000; with --drive any free port);
                          a PORT alone is one of 127.0.0.1
  --unix PATH             listen on a Unix socket instead
  --threads N             threads of the pool (default 4)
  --order ORDER           lifo | fifo | priority | unordered (default lifo)
  --leaders N             threads that may wait on the handle set (default: as many as may run, or one more)
  --events N              events fetched by one wait, at most 4096 (default 64)
  --running N             threads that may run handlers at once (default: the CPUs)
  --deactivation HOW      oneshot | edge (default oneshot)
  --papers                the pattern exactly as in the papers; it chooses leaders, events and running
  --pin                   pin the threads, one per CPU
  --spin-us U             poll for U microseconds before sleeping
  --work-us U             burn U microseconds of CPU for each request
  --block-us U            sleep U microseconds for each request that begins with 'B'
  --idle-timeout-ms T     close connections on which nothing happens for T milliseconds
  --max-connections N     serve N connections at once; others wait until one has closed
  --drive                 run a load against the server from a child process, then stop
  --help                  this text

Only with --drive:
  --connections C         connections of the load (default 64)
  --size B                bytes of a request (default 64)
  --seconds S             how long to drive (default 5)
  --rate R                requests per second, open loop (default: as many as possible)
  --block-percent P       how many of a hundred requests begin with 'B' (default 0); needs --block-us

SIGINT and SIGTERM stop it: what runs is finished, for at most 5 seconds. A second one ends it at once.
";

pub(crate) struct Args {
    pub(crate) mode: Mode,
    pub(crate) pool: Builder,
    pub(crate) threads: usize,
    pub(crate) listen: Listen,
    pub(crate) cost: Cost,
    /// How long a connection may be silent.
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) max_connections: Option<usize>,
    pub(crate) load: Load,
}

#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Mode {
    Help,
    Serve,
    Drive,
    /// The load alone: what `--drive` starts as a child process.
    Load,
}

/// Where to listen.
pub(crate) enum Listen {
    /// What was asked for, and the addresses it stands for, one of which is enough.
    Tcp(String, Vec<SocketAddr>),
    Unix(PathBuf),
}

impl Args {
    pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Args, lexopt::Error> {
        let mut parser = lexopt::Parser::from_iter(args);
        let mut args = Args {
            mode: Mode::Serve,
            pool: Pool::builder().name("echo"),
            threads: 4,
            listen: Listen::Unix(PathBuf::new()),
            cost: Cost::default(),
            idle_timeout: None,
            max_connections: None,
            load: Load::default(),
        };
        let (mut address, mut path) = (None, None);
        let mut given: Vec<String> = Vec::new();
        while let Some(option) = parser.next()? {
            let name = match option {
                Short('h') => "help".to_string(),
                Long(name) => name.to_string(),
                _ => return Err(option.unexpected()),
            };
            let mut value = Input { parser: &mut parser, option: &name };
            let mut pool = args.pool.clone();
            match name.as_str() {
                "help" => args.mode = Mode::Help,
                "drive" if args.mode == Mode::Serve => args.mode = Mode::Drive,
                "load" if args.mode == Mode::Serve => args.mode = Mode::Load,
                "drive" | "load" => {}
                "addr" => address = Some(value.text()?),
                "unix" => path = Some(PathBuf::from(value.parser.value()?)),
                "threads" => args.threads = value.at_least_one()?,
                "order" => pool = pool.order(value.choice(&ORDERS)?),
                "leaders" => pool = pool.leaders(value.at_least_one()?),
                "events" => pool = pool.events_per_wait(value.at_least_one()?),
                "running" => pool = pool.running(value.at_least_one()?),
                "deactivation" => pool = pool.deactivation(value.choice(&DEACTIVATIONS)?),
                "papers" => pool = pool.papers(),
                "pin" => pool = pool.pinning(Pinning::OnePerCpu),
                "spin-us" => pool = pool.spin(Duration::from_micros(value.number()?)),
                "work-us" => args.cost.work = Duration::from_micros(value.number()?),
                "block-us" => args.cost.block = Duration::from_micros(value.number()?),
                "idle-timeout-ms" => {
                    let milliseconds = value.at_least_one()? as u64;
                    args.idle_timeout = Some(Duration::from_millis(milliseconds));
                }
                "max-connections" => args.max_connections = Some(value.at_least_one()?),
                "connections" => args.load.connections = value.number()?,
                "size" => args.load.size = value.number()?,
                "seconds" => args.load.seconds = value.number()?,
                "rate" => args.load.rate = Some(value.number()?),
                "block-percent" => args.load.block_percent = value.number()?,
                _ => return Err(format!("--{name}: no such option; --help lists them").into()),
            }
            args.pool = pool;
            given.push(name);
        }
        if args.mode == Mode::Help {
            return Ok(args);
        }
        args.listen = match (address, path) {
            (Some(_), Some(_)) => return Err("--addr and --unix: choose one of them".into()),
            (None, Some(path)) => Listen::Unix(path),
            (Some(address), None) => resolve(&address)?,
            (None, None) => resolve(if args.mode == Mode::Drive { "0" } else { "7000" })?,
        };
        args.load.address = args.listen.first();
        args.load.check()?;
        args.check(&given)?;
        args.pool = args.pool.threads(args.threads);
        Ok(args)
    }

    /// Options that contradict each other, or would do nothing.
    fn check(&self, given: &[String]) -> Result<(), String> {
        let find = |names: &[&str]| given.iter().find(|name| names.contains(&name.as_str()));
        let of_load = ["connections", "size", "seconds", "rate", "block-percent"];
        if let (Mode::Serve, Some(name)) = (self.mode, find(&of_load)) {
            return Err(format!("--{name} is for the load: add --drive"));
        }
        if let (Some(_), Some(name)) = (find(&["papers"]), find(&["leaders", "events", "running"]))
        {
            return Err(format!("--papers chooses --{name} by itself: leave one of them out"));
        }
        if self.mode == Mode::Drive && self.load.block_percent > 0 && self.cost.block.is_zero() {
            return Err("--block-percent does nothing without --block-us".into());
        }
        match self.max_connections {
            Some(most) if self.mode == Mode::Drive && most < self.load.connections => Err(format!(
                "--max-connections {most}: the load has --connections {}, and the rest of them \
                 would wait for ever",
                self.load.connections
            )),
            _ => Ok(()),
        }
    }
}

impl Listen {
    /// One of the addresses.
    fn first(&self) -> Address {
        match self {
            Listen::Tcp(_, addresses) => Address::Tcp(addresses[0]),
            Listen::Unix(path) => Address::Unix(path.clone()),
        }
    }
}

/// What the pool's builder has to say, with the option that made it say so.
pub(crate) fn explain(error: &cabrank::Error) -> String {
    use cabrank::Error;
    let options = match error {
        Error::MoreLeadersThanThreads { leaders, threads } => {
            format!("--leaders {leaders} --threads {threads}")
        }
        Error::OutOfRange { option: "threads", value, .. } => format!("--threads {value}"),
        Error::OutOfRange { option: "events_per_wait", value, .. } => format!("--events {value}"),
        Error::Spawn { .. } => "--threads".into(),
        Error::NoSuchCpu { .. } | Error::Pin { .. } => "--pin".into(),
        _ => return error.to_string(),
    };
    format!("{options}: {error}")
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

    fn number<T: FromStr>(&mut self) -> Result<T, lexopt::Error> {
        let text = self.text()?;
        text.parse()
            .map_err(|_| self.wrong(&text, "expected a number, not negative and not too large"))
    }

    fn at_least_one(&mut self) -> Result<usize, lexopt::Error> {
        match self.number()? {
            0 => Err(self.wrong("0", "expected at least 1")),
            number => Ok(number),
        }
    }

    fn choice<T: Copy>(&mut self, choices: &[(&str, T)]) -> Result<T, lexopt::Error> {
        let text = self.text()?;
        let found = choices.iter().find(|(name, _)| *name == text);
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let expected = format!("expected {}", names.join(" or "));
        found.map(|(_, choice)| *choice).ok_or_else(|| self.wrong(&text, expected))
    }

    fn wrong(&self, value: &str, why: impl Display) -> lexopt::Error {
        format!("--{} {value}: {why}", self.option).into()
    }
}

/// `HOST:PORT`, where the host may be a name, or the port alone.
fn resolve(address: &str) -> Result<Listen, String> {
    let port = address.strip_prefix(':').unwrap_or(address).parse::<u16>();
    if let Ok(port) = port {
        return Ok(Listen::Tcp(address.into(), vec![([127, 0, 0, 1], port).into()]));
    }
    let expected = "expected HOST:PORT, such as 127.0.0.1:7000 or localhost:7000";
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if !has_port {
        return Err(format!("--addr {address}: {expected}"));
    }
    let resolved = address.to_socket_addrs();
    let mut addresses: Vec<SocketAddr> =
        resolved.map_err(|error| format!("--addr {address}: {error}; {expected}"))?.collect();
    // Those who say a number mean 127.0.0.1, and those who say localhost should meet them.
    addresses.sort_by_key(|address| !address.is_ipv4());
    if addresses.is_empty() {
        return Err(format!("--addr {address}: the name has no address; {expected}"));
    }
    Ok(Listen::Tcp(address.into(), addresses))
}

const ORDERS: [(&str, Order); 4] = [
    ("lifo", Order::Lifo),
    ("fifo", Order::Fifo),
    ("priority", Order::Priority),
    ("unordered", Order::Unordered),
];

const DEACTIVATIONS: [(&str, Deactivation); 2] =
    [("oneshot", Deactivation::OneShot), ("edge", Deactivation::Edge)];
