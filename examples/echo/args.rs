//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cabrank::{Builder, Deactivation, Order, Pinning, Pool};
use lexopt::prelude::*;

use crate::load::{Address, Load};

pub(crate) const HELP: &str = "\
An echo server on cabrank.

  --addr HOST:PORT        listen here (default 127.0.0.1:7000; with --drive any free port)
  --unix PATH             listen on a Unix socket instead
  --threads N             threads of the pool (default 4)
  --order ORDER           lifo | fifo | priority | unordered (default lifo)
  --leaders N             threads that may wait on the handle set (default: as many as may run)
  --events N              events fetched by one wait (default 64)
  --running N             threads that may run handlers at once (default: the CPUs)
  --deactivation HOW      oneshot | edge (default oneshot)
  --papers                the pattern exactly as in the papers
  --pin                   pin the threads, one per CPU
  --spin-us U             poll for U microseconds before sleeping
  --work-us U             burn U microseconds of CPU for each request
  --block-us U            sleep U microseconds for each request that begins with 'B'
  --drive                 run a load against the server from a child process, then stop
  --connections C         connections of the load (default 64)
  --size B                bytes of a request (default 64)
  --seconds S             how long to drive (default 5)
  --rate R                requests per second, open loop (default: as many as possible)
  --block-percent P       how many of the load's requests begin with 'B' (default 0)
  --help                  this text
";

pub(crate) struct Args {
    pub(crate) mode: Mode,
    pub(crate) pool: Builder,
    pub(crate) threads: usize,
    pub(crate) work: Duration,
    pub(crate) block: Duration,
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

impl Args {
    pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Args, lexopt::Error> {
        let mut parser = lexopt::Parser::from_iter(args);
        let mut mode = Mode::Serve;
        let mut pool = Pool::builder().name("echo");
        let mut threads = 4;
        let mut work = Duration::ZERO;
        let mut block = Duration::ZERO;
        let mut address = None;
        let mut load = Load::default();
        while let Some(option) = parser.next()? {
            match option {
                Short('h') | Long("help") => mode = Mode::Help,
                Long("drive") => mode = Mode::Drive,
                Long("load") => mode = Mode::Load,
                Long("addr") => {
                    let name = parser.value()?.string()?;
                    let parsed = name.parse().map_err(|_| {
                        format!("--addr {name}: expected HOST:PORT, such as 127.0.0.1:7000")
                    })?;
                    address = Some(Address::Tcp(parsed));
                }
                Long("unix") => address = Some(Address::Unix(PathBuf::from(parser.value()?))),
                Long("threads") => threads = parser.value()?.parse()?,
                Long("order") => pool = pool.order(parser.value()?.parse_with(order)?),
                Long("leaders") => pool = pool.leaders(parser.value()?.parse()?),
                Long("events") => pool = pool.events_per_wait(parser.value()?.parse()?),
                Long("running") => pool = pool.running(parser.value()?.parse()?),
                Long("deactivation") => {
                    pool = pool.deactivation(parser.value()?.parse_with(deactivation)?);
                }
                Long("papers") => pool = pool.papers(),
                Long("pin") => pool = pool.pinning(Pinning::OnePerCpu),
                Long("spin-us") => pool = pool.spin(microseconds(&mut parser)?),
                Long("work-us") => work = microseconds(&mut parser)?,
                Long("block-us") => block = microseconds(&mut parser)?,
                Long("connections") => load.connections = parser.value()?.parse()?,
                Long("size") => load.size = parser.value()?.parse()?,
                Long("seconds") => load.seconds = parser.value()?.parse()?,
                Long("rate") => load.rate = Some(parser.value()?.parse()?),
                Long("block-percent") => load.block_percent = parser.value()?.parse()?,
                _ => return Err(option.unexpected()),
            }
        }
        let port = if mode == Mode::Drive { 0 } else { 7000 };
        load.address = address.unwrap_or(Address::Tcp(([127, 0, 0, 1], port).into()));
        load.check()?;
        Ok(Args { mode, pool: pool.threads(threads), threads, work, block, load })
    }
}

fn microseconds(parser: &mut lexopt::Parser) -> Result<Duration, lexopt::Error> {
    Ok(Duration::from_micros(parser.value()?.parse()?))
}

fn order(name: &str) -> Result<Order, String> {
    match name {
        "lifo" => Ok(Order::Lifo),
        "fifo" => Ok(Order::Fifo),
        "priority" => Ok(Order::Priority),
        "unordered" => Ok(Order::Unordered),
        _ => Err("expected lifo, fifo, priority or unordered".into()),
    }
}

fn deactivation(name: &str) -> Result<Deactivation, String> {
    match name {
        "oneshot" => Ok(Deactivation::OneShot),
        "edge" => Ok(Deactivation::Edge),
        _ => Err("expected oneshot or edge".into()),
    }
}
