//! The load: many connections on one thread, closed loop or at a fixed rate.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use cabrank::sys::epoll::{Epoll, Events, Flags};
use hdrhistogram::Histogram;

use crate::connection::Stream;

/// Where a server listens.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// What to send, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) address: Address,
    pub(crate) connections: usize,
    pub(crate) size: usize,
    pub(crate) seconds: f64,
    /// Requests per second at times of their own, whatever the server does; `None`: each connection
    /// sends when it has its answer.
    pub(crate) rate: Option<f64>,
    /// How many of a hundred requests begin with `B`.
    pub(crate) block_percent: u32,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    /// In nanoseconds, of the requests that do not block; in an open loop from the intended time of
    /// sending.
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl Load {
    /// Whether it can be done.
    ///
    /// # Errors
    /// What is wrong, with the option that says so.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Load { connections, size, seconds, rate, block_percent, .. } = *self;
        if !(1..=MOST_CONNECTIONS).contains(&connections) {
            let expected = format!("expected more than zero and at most {MOST_CONNECTIONS}");
            return Err(format!("--connections {connections}: {expected}"));
        }
        if !(1..=MOST_BYTES).contains(&size) {
            let expected = format!("expected more than zero and at most {MOST_BYTES}");
            return Err(format!("--size {size}: {expected}"));
        }
        if !(seconds > 0.0 && seconds <= MOST_SECONDS) {
            let expected = format!("expected more than zero and at most {MOST_SECONDS}");
            return Err(format!("--seconds {seconds:?}: {expected}"));
        }
        if let Some(rate) = rate.filter(|&rate| !(rate > 0.0 && rate <= MOST_RATE)) {
            let expected = format!("expected more than zero and at most {MOST_RATE}");
            return Err(format!("--rate {rate:?}: {expected}"));
        }
        if block_percent > 100 {
            return Err(format!("--block-percent {block_percent}: expected from 0 to 100"));
        }
        Ok(())
    }

    /// The command line that makes another process run this load.
    pub(crate) fn to_args(&self) -> Vec<String> {
        let (option, address) = match &self.address {
            Address::Tcp(address) => ("--addr", address.to_string()),
            Address::Unix(path) => ("--unix", path.display().to_string()),
        };
        let mut args = vec!["--load".into(), option.into(), address];
        args.extend(["--connections".into(), self.connections.to_string()]);
        args.extend(["--size".into(), self.size.to_string()]);
        args.extend(["--seconds".into(), self.seconds.to_string()]);
        args.extend(["--block-percent".into(), self.block_percent.to_string()]);
        if let Some(rate) = self.rate {
            args.extend(["--rate".into(), rate.to_string()]);
        }
        args
    }
}

impl Default for Load {
    fn default() -> Load {
        let address = Address::Tcp(([127, 0, 0, 1], 0).into());
        Load { address, connections: 64, size: 64, seconds: 5.0, rate: None, block_percent: 0 }
    }
}

/// Runs the load; writes `connected` and then, at the end, the outcome, a line each. Ends early when the
/// standard input does: then whoever started it has had enough, or is gone.
pub(crate) fn run(load: &Load, mut output: impl Write) -> io::Result<()> {
    let mut clients = Clients::connect(load)?;
    writeln!(output, "connected")?;
    output.flush()?;
    let outcome = match load.rate {
        None => clients.closed_loop(Duration::from_secs_f64(load.seconds))?,
        Some(rate) => clients.open_loop(Duration::from_secs_f64(load.seconds), rate)?,
    };
    writeln!(output, "{outcome}")?;
    output.flush()
}

struct Clients {
    epoll: Epoll,
    clients: Vec<Client>,
    /// A request, and one that blocks its handler.
    requests: [Vec<u8>; 2],
    block_percent: u32,
    /// Requests sent so far: every so many blocks.
    sent: u64,
    /// Without the requests that block their handler.
    histogram: Histogram<u64>,
    /// How many of those were answered.
    blocked: u64,
    start: Instant,
}

struct Client {
    stream: Stream,
    /// Bytes of the present answer still to come; 0 if there is no request under way.
    missing: usize,
    /// When the present request was sent, or should have been.
    since: Duration,
    /// Which of the requests it is.
    kind: usize,
    /// Bytes of it still to be sent.
    unsent: usize,
}

impl Clients {
    fn connect(load: &Load) -> io::Result<Clients> {
        let epoll = Epoll::new()?;
        // What cannot be watched, such as /dev/null, never ends.
        let _ = epoll.add(io::stdin(), Flags::default(), INPUT);
        let mut clients = Vec::with_capacity(load.connections);
        let mut said = Instant::now();
        for number in 0..load.connections {
            let stream = connect(&load.address).map_err(|error| {
                let which = format!("{} of {} to {}", number + 1, load.connections, load.address);
                io::Error::new(
                    error.kind(),
                    format!("cannot make connection {which}: {error}{}", advice(&error)),
                )
            })?;
            epoll.add(&stream, Flags::IN, number as u64)?;
            clients.push(Client { stream, missing: 0, since: Duration::ZERO, kind: 0, unsent: 0 });
            if said.elapsed() > Duration::from_millis(500) {
                said = Instant::now();
                // Whether anybody reads it does not matter.
                let _ = writeln!(io::stderr(), "connecting {} of {}", number + 1, load.connections);
            }
        }
        let requests = [vec![b'x'; load.size], vec![b'B'; load.size]];
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let (block_percent, start) = (load.block_percent, Instant::now());
        Ok(Clients {
            epoll,
            clients,
            requests,
            block_percent,
            sent: 0,
            histogram,
            blocked: 0,
            start,
        })
    }

    /// Each connection sends its next request when it has its answer.
    fn closed_loop(&mut self, time: Duration) -> io::Result<Outcome> {
        let mut events = Events::with_capacity(NonZeroUsize::new(256).unwrap());
        self.start = Instant::now();
        for number in 0..self.clients.len() {
            self.send(number, Duration::ZERO)?;
        }
        loop {
            self.epoll.wait(&mut events, Some(Duration::from_millis(100)))?;
            let now = self.start.elapsed();
            if now >= time {
                return Ok(self.outcome(now));
            }
            for event in events.iter() {
                if event.data() == INPUT {
                    return Ok(self.outcome(now));
                }
                let number = event.data() as usize;
                if self.receive(number, now)? {
                    self.send(number, now)?;
                }
            }
        }
    }

    /// Requests fall due at random times of a given rate; one that finds no free connection waits.
    fn open_loop(&mut self, time: Duration, rate: f64) -> io::Result<Outcome> {
        let mut events = Events::with_capacity(NonZeroUsize::new(256).unwrap());
        let mut free: VecDeque<usize> = (0..self.clients.len()).collect();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut due = Duration::ZERO;
        self.start = Instant::now();
        loop {
            let now = self.start.elapsed();
            if now >= time {
                return Ok(self.outcome(now));
            }
            while due <= now {
                let Some(number) = free.pop_front() else {
                    break;
                };
                self.send(number, due)?;
                due += Duration::from_secs_f64(random.exponential() / rate);
            }
            // Waiting by the clock would be late by the timer's slack, so the last stretch is polled.
            let rest = due.saturating_sub(self.start.elapsed());
            let timeout = if free.is_empty() {
                Duration::from_millis(100)
            } else {
                rest.saturating_sub(Duration::from_micros(80))
            };
            self.epoll.wait(&mut events, Some(timeout))?;
            let now = self.start.elapsed();
            for event in events.iter() {
                if event.data() == INPUT {
                    return Ok(self.outcome(now));
                }
                let number = event.data() as usize;
                if self.receive(number, now)? {
                    free.push_back(number);
                }
            }
        }
    }

    fn send(&mut self, number: usize, since: Duration) -> io::Result<()> {
        self.sent += 1;
        let client = &mut self.clients[number];
        // Spread evenly: the whole number of blocking requests grows with every so many.
        let blocking = |sent: u64| sent * u64::from(self.block_percent) / 100;
        client.kind = usize::from(blocking(self.sent) > blocking(self.sent - 1));
        let request = &self.requests[client.kind];
        (client.missing, client.since, client.unsent) = (request.len(), since, request.len());
        client.push(request)
    }

    /// Reads what is there; whether that completes the answer.
    fn receive(&mut self, number: usize, now: Duration) -> io::Result<bool> {
        let client = &mut self.clients[number];
        client.push(&self.requests[client.kind])?;
        let mut buffer = [0; 16 * 1024];
        let read = match client.stream.read(&mut buffer) {
            Ok(0) => {
                let what = format!("the server has closed connection {}", number + 1);
                return Err(io::Error::new(ErrorKind::UnexpectedEof, what));
            }
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        client.missing = client.missing.saturating_sub(read);
        if client.missing > 0 {
            return Ok(false);
        }
        let took = now.saturating_sub(client.since).as_nanos() as u64;
        match client.kind {
            0 => self.histogram.saturating_record(took.max(1)),
            _ => self.blocked += 1,
        }
        Ok(true)
    }

    fn outcome(&self, time: Duration) -> Outcome {
        let at = |quantile| self.histogram.value_at_quantile(quantile);
        Outcome {
            requests: self.histogram.len() + self.blocked,
            seconds: time.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: self.histogram.max(),
        }
    }
}

impl Client {
    /// Sends what is left of the request and fits. A request larger than the socket's buffer goes out
    /// as its answer comes back.
    fn push(&mut self, request: &[u8]) -> io::Result<()> {
        while self.unsent > 0 {
            match self.stream.write(&request[request.len() - self.unsent..]) {
                Ok(written) => self.unsent -= written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn connect(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(Stream::Tcp(stream))
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_nonblocking(true)?;
            Ok(Stream::Unix(stream))
        }
    }
}

/// What to do about it, where that is known.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; raise the limit (ulimit -n) or have fewer connections",
        _ => "",
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { requests, seconds, p50, p99, p999, max } = self;
        write!(f, "{requests} {seconds} {p50} {p99} {p999} {max}")
    }
}

impl FromStr for Outcome {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Outcome> {
        let bad = || io::Error::other(format!("the load said {line:?}"));
        let mut words = line.split_whitespace();
        let mut next = || words.next().ok_or_else(bad);
        let number = |word: &str| word.parse::<u64>().map_err(|_| bad());
        Ok(Outcome {
            requests: number(next()?)?,
            seconds: next()?.parse().map_err(|_| bad())?,
            p50: number(next()?)?,
            p99: number(next()?)?,
            p999: number(next()?)?,
            max: number(next()?)?,
        })
    }
}

/// xorshift: the same times in every run.
struct Random(u64);

impl Random {
    /// Exponentially distributed with mean 1: the gaps of a Poisson process.
    fn exponential(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let uniform = (self.0 >> 11) as f64 / (1_u64 << 53) as f64;
        -(1.0 - uniform).ln()
    }
}

/// Stands for the standard input among the connections.
const INPUT: u64 = u64::MAX;

const MOST_CONNECTIONS: usize = 100_000;
const MOST_BYTES: usize = 64 << 20;
const MOST_SECONDS: f64 = 86_400.0;
const MOST_RATE: f64 = 1e9;
