//! Server here, load in a child process, figures at the end.

use std::error::Error;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::{Metrics, Pool};

use crate::args::Args;
use crate::load::{Load, Outcome};
use crate::output::{Progress, complain, say, table};
use crate::server::Server;
use crate::stop::Watch;
use crate::switches::Usage;

pub(crate) fn drive(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let (tell, told) = mpsc::channel();
    let tell_signal = tell.clone();
    let _watch = Watch::start(move |signal| {
        // A second one ends the process before anybody could hear of it.
        let _ = tell_signal.send(News::Signal(signal));
    })?;
    let server = Server::start(args)?;
    let load = Load { address: server.address.clone(), ..args.load.clone() };
    say!("listening on {}", server.address)?;
    let pace = load.rate.map_or_else(|| "as fast as they go".into(), |rate| format!("{rate}/s"));
    say!(
        "{} threads, {} connections, {} bytes, {pace}, {} s",
        args.threads,
        load.connections,
        load.size,
        load.seconds
    )?;
    let measured =
        Driver::start(&load, tell, told).and_then(|driver| driver.measure(&load, &server.pool));
    let measured = match measured {
        Ok(measured) => measured,
        Err(error) => {
            server.stop();
            return Err(error);
        }
    };
    if let Some(signal) = measured.interrupted {
        say!("interrupted by signal {signal}")?;
    }
    let mut requests = 0;
    if let Some(figures) = measured.figures {
        requests = figures.outcome.requests;
        if requests > 0 {
            figures.print()?;
        }
        table(&figures.period)?;
    }
    let unfinished = server.stop().unfinished;
    if let Some(signal) = measured.interrupted {
        if let Some(error) = unfinished {
            complain!("{error}");
        }
        // As a shell tells of a process that a signal has ended.
        return Ok(ExitCode::from(128 + u8::try_from(signal)?));
    }
    if requests == 0 {
        return Err(format!("no request was completed in {} s", load.seconds).into());
    }
    unfinished.map_or(Ok(ExitCode::SUCCESS), |error| Err(error.into()))
}

/// What a run came to.
struct Measured {
    /// None if it was interrupted before it began.
    figures: Option<Figures>,
    interrupted: Option<i32>,
}

/// From the moment all connections stand to the end of the load.
struct Figures {
    outcome: Outcome,
    usage: Usage,
    period: Metrics,
}

impl Figures {
    fn print(&self) -> io::Result<()> {
        let Figures { outcome, usage, period } = self;
        let requests = outcome.requests as f64;
        say!("requests/s              {:>12.0}", requests / outcome.seconds)?;
        say!("latency p50             {:>9.1} us", outcome.p50 as f64 / 1e3)?;
        say!("latency p99             {:>9.1} us", outcome.p99 as f64 / 1e3)?;
        say!("latency p99.9           {:>9.1} us", outcome.p999 as f64 / 1e3)?;
        say!("latency max             {:>9.1} us", outcome.max as f64 / 1e3)?;
        say!("CPU/request             {:>9.2} us", usage.cpu.as_secs_f64() * 1e6 / requests)?;
        say!("voluntary sw./request   {:>12.4}", usage.voluntary as f64 / requests)?;
        say!("involuntary sw./request {:>12.4}", usage.involuntary as f64 / requests)?;
        let promotions = period.total().promotions as f64;
        say!("promotions/request      {:>12.4}\n", promotions / requests)
    }
}

/// What happens meanwhile.
enum News {
    /// The load has said something.
    Line(String),
    /// The load will say no more.
    Ended,
    Signal(i32),
}

/// The load, a child process. It says `connected` and then the outcome; it ends early with its input.
struct Driver {
    child: Child,
    told: Receiver<News>,
}

impl Driver {
    fn start(
        load: &Load,
        tell: Sender<News>,
        told: Receiver<News>,
    ) -> Result<Driver, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(load.to_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("the load has no output")?;
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = tell.send(News::Line(line));
            }
            let _ = tell.send(News::Ended);
        });
        Ok(Driver { child, told })
    }

    fn measure(mut self, load: &Load, pool: &Pool) -> Result<Measured, Box<dyn Error>> {
        match self.told.recv()? {
            News::Line(_) => {}
            News::Ended => return Err(self.obituary()),
            News::Signal(signal) => {
                return Ok(Measured { figures: None, interrupted: Some(signal) });
            }
        }
        let (usage, metrics) = (Usage::now(), pool.metrics());
        let start = Instant::now();
        let mut progress = Progress::new();
        let mut interrupted = None;
        let outcome = loop {
            match self.told.recv_timeout(Duration::from_millis(500)) {
                Ok(News::Line(line)) => break line.parse::<Outcome>()?,
                Ok(News::Ended) => return Err(self.obituary()),
                Ok(News::Signal(signal)) => {
                    interrupted = Some(signal);
                    // The load sees this and tells what it has.
                    drop(self.child.stdin.take());
                }
                Err(RecvTimeoutError::Timeout) if interrupted.is_some() => {
                    return Ok(Measured { figures: None, interrupted });
                }
                Err(RecvTimeoutError::Timeout) => {
                    let (elapsed, total) = (start.elapsed().as_secs_f64(), load.seconds);
                    let events = pool.metrics().total().events;
                    progress.show(format_args!("{elapsed:5.1} of {total:.1} s, {events} events"));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.obituary()),
            }
        };
        let usage = Usage::now().since(usage);
        let figures = Figures { outcome, usage, period: pool.metrics() - &metrics };
        Ok(Measured { figures: Some(figures), interrupted })
    }

    /// Why the load said nothing.
    fn obituary(&mut self) -> Box<dyn Error> {
        match self.child.wait() {
            Ok(status) => format!("the load process ended early: {status}").into(),
            Err(error) => error.into(),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Ours, and of no use any more. Mostly it has ended by itself.
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
