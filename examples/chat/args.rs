//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use lexopt::prelude::*;

pub(crate) const HELP: &str = "\
A chat server on cabrank. The first line a client says is its name.

  --addr HOST:PORT        listen here (default 127.0.0.1:7001; with --self-test any free port)
  --threads N             threads of the pool (default 4)
  --idle-timeout-ms MS    turn out who is silent for so long (default 300000; with --self-test 1000)
  --max-connections N     let in so many at a time, the others wait (default 10000)
  --time-every-ms MS      tell everybody the time (default 60000; with --self-test 20)
  --self-test             serve clients of its own, check what they see, and stop
  --help                  this text
";

#[derive(Clone, Debug)]
pub(crate) struct Args {
    pub(crate) mode: Mode,
    pub(crate) address: SocketAddr,
    pub(crate) threads: usize,
    pub(crate) idle_timeout: Duration,
    pub(crate) max_connections: usize,
    pub(crate) time_every: Duration,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    Help,
    Serve,
    SelfTest,
}

impl Args {
    pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Args, lexopt::Error> {
        let mut parser = lexopt::Parser::from_iter(args);
        let mut mode = Mode::Serve;
        let (mut address, mut idle_timeout, mut time_every) = (None, None, None);
        let (mut threads, mut max_connections) = (4, 10_000);
        while let Some(option) = parser.next()? {
            match option {
                Short('h') | Long("help") => mode = Mode::Help,
                Long("self-test") => mode = Mode::SelfTest,
                Long("addr") => {
                    let name = parser.value()?.string()?;
                    let parsed = name.parse().map_err(|_| {
                        format!("--addr {name}: expected HOST:PORT, such as 127.0.0.1:7001")
                    })?;
                    address = Some(parsed);
                }
                Long("threads") => threads = parser.value()?.parse()?,
                Long("max-connections") => {
                    max_connections = parser.value()?.parse()?;
                    if max_connections == 0 {
                        return Err("--max-connections 0: nobody could come in".into());
                    }
                }
                Long("idle-timeout-ms") => idle_timeout = Some(milliseconds(&mut parser)?),
                Long("time-every-ms") => time_every = Some(milliseconds(&mut parser)?),
                _ => return Err(option.unexpected()),
            }
        }
        let (port, idle, every) = match mode {
            Mode::SelfTest => (0, 1_000, 20),
            _ => (7001, 300_000, 60_000),
        };
        Ok(Args {
            mode,
            address: address.unwrap_or(([127, 0, 0, 1], port).into()),
            threads,
            idle_timeout: idle_timeout.unwrap_or(Duration::from_millis(idle)),
            max_connections,
            time_every: time_every.unwrap_or(Duration::from_millis(every)),
        })
    }
}

fn milliseconds(parser: &mut lexopt::Parser) -> Result<Duration, lexopt::Error> {
    let time = Duration::from_millis(parser.value()?.parse()?);
    if time.is_zero() {
        return Err("a time must be at least one millisecond".into());
    }
    Ok(time)
}
