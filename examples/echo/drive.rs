//! Server here, load in a child process, figures at the end.

use std::error::Error;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::load::Outcome;
use crate::server;
use crate::switches::Usage;

pub(crate) fn drive(args: &Args) -> Result<(), Box<dyn Error>> {
    let server = server::start(args)?;
    let mut load = args.load.clone();
    load.address = server.address.clone();
    println!("listening on {}", server.address);
    let pace = load.rate.map_or_else(|| "as fast as they go".into(), |rate| format!("{rate}/s"));
    println!(
        "{} threads, {} connections, {} bytes, {pace}, {} s",
        args.threads, load.connections, load.size, load.seconds
    );

    let mut child = Command::new(std::env::current_exe()?)
        .args(load.to_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let outcome = measure(&mut child, load.seconds, &server.pool);
    if outcome.is_err() {
        // Ours, and of no use any more.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let (outcome, usage, period) = outcome?;
    if !status.success() {
        return Err(format!("the load failed: {status}").into());
    }

    let requests = outcome.requests.max(1) as f64;
    let promotions = period.total().promotions;
    println!("requests/s              {:>12.0}", outcome.requests as f64 / outcome.seconds);
    println!("latency p50             {:>9.1} us", outcome.p50 as f64 / 1e3);
    println!("latency p99             {:>9.1} us", outcome.p99 as f64 / 1e3);
    println!("latency p99.9           {:>9.1} us", outcome.p999 as f64 / 1e3);
    println!("latency max             {:>9.1} us", outcome.max as f64 / 1e3);
    println!("CPU/request             {:>9.2} us", usage.cpu.as_secs_f64() * 1e6 / requests);
    println!("voluntary sw./request   {:>12.4}", usage.voluntary as f64 / requests);
    println!("involuntary sw./request {:>12.4}", usage.involuntary as f64 / requests);
    println!("promotions/request      {:>12.4}", promotions as f64 / requests);
    println!();
    println!("{period}");
    server.stop();
    Ok(())
}

/// Reads the child's lines, with a progress line meanwhile. The figures are from the moment all its
/// connections stand to the moment it is done.
fn measure(
    child: &mut Child,
    seconds: f64,
    pool: &cabrank::Pool,
) -> Result<(Outcome, Usage, cabrank::Metrics), Box<dyn Error>> {
    let output = child.stdout.take().ok_or("the load has no output")?;
    let mut lines = BufReader::new(output).lines();
    let mut line = || lines.next().unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()));
    line()?;
    let (usage, metrics) = (Usage::now(), pool.metrics());
    let outcome = thread::scope(|scope| {
        let (done, told) = mpsc::channel::<()>();
        scope.spawn(move || {
            let start = Instant::now();
            let every = Duration::from_millis(500);
            while told.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let events = pool.metrics().total().events;
                progress(start.elapsed().as_secs_f64(), seconds, events);
            }
        });
        let outcome = line()?.parse::<Outcome>();
        drop(done);
        outcome
    })?;
    let usage = Usage::now().since(usage);
    clear_progress();
    Ok((outcome, usage, pool.metrics() - &metrics))
}

fn progress(elapsed: f64, seconds: f64, events: u64) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{elapsed:5.1} of {seconds:.1} s, {events} events ");
        let _ = std::io::stderr().flush();
    }
}

fn clear_progress() {
    if std::io::stderr().is_terminal() {
        eprint!("\r{:50}\r", "");
    }
}
