//! Is it the fastest, and where is it not? Event loops side by side, in the same regimes.
//!
//! ```text
//! cargo bench --bench compare                             # everything, in about 45 minutes
//! cargo bench --bench compare -- --quick                  # a little of everything, in less than one
//! cargo bench --bench compare -- --regimes saturation default edge
//! cargo bench --bench compare -- --help
//! ```
//!
//! Every contestant is a fresh process, every load another, and the rounds are interleaved, so that a machine
//! that is faster now and slower then is so for all; what counts is the ratio to the bare loop of the same
//! round. What a server uses is read from outside, for all of them alike.

mod address;
mod args;
#[path = "../../examples/echo/connection.rs"]
mod connection;
mod contestants;
mod counting;
mod json;
mod limits;
mod load;
mod machine;
mod measure;
mod peers;
mod placement;
mod process;
mod progress;
mod regimes;
mod report;
mod results;
mod runner;
mod statistics;
mod table;
mod target;
mod usage;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use args::{Command, Options};
use contestants::Contestant;
use regimes::Plan;
use results::Results;
use runner::Runner;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody reads it there is nobody to tell.
            let _ = writeln!(io::stderr(), "compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    match Command::parse(std::env::args_os())? {
        Command::Help => print(args::HELP)?,
        Command::List => print(&list())?,
        Command::Serve(contestant, setup) => contestants::serve(contestant, &setup)?,
        Command::Load(load) => load.run()?,
        Command::Compare(options) => compare(&options)?,
    }
    Ok(())
}

fn compare(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(path) = &options.json {
        check_writable(path)?;
    }
    limits::descriptors();
    let mut plans: Vec<Plan> = options.regimes.iter().map(|regime| regime.plan(options)).collect();
    let mut runner = Runner::new(options)?;
    runner.prepare(&mut plans);
    let mut results = Results { machine: machine::describe(), regimes: vec![], skipped: vec![] };
    for plan in plans {
        results.regimes.push(runner.run(plan));
    }
    let failures = runner.failures();
    results.skipped = runner.finish();
    publish(&results, options)?;
    if failures > 0 {
        return Err(format!("{failures} measurements failed; see above").into());
    }
    Ok(())
}

/// Says what was found, to people and to programs.
fn publish(results: &Results, options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    print(&table::render(results))?;
    if let Some(path) = &options.json {
        fs::write(path, json::render(results))
            .map_err(|error| format!("--json {}: {error}", path.display()))?;
    }
    let folder = target::directory().join("compare");
    let path = folder.join("report.html");
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&path, report::render(results)))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    print(&format!("\nWith charts: {}\n", path.display()))?;
    Ok(())
}

/// Before the work, not after it.
fn check_writable(path: &Path) -> Result<(), String> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map(drop).map_err(|error| format!("--json {}: {error}", path.display()))
}

fn list() -> String {
    let mut text = String::from("Contestants:\n");
    for contestant in Contestant::ALL {
        text.push_str(&format!("  {:<14} {}\n", contestant.name(), contestant.describe()));
    }
    text.push_str("\nRegimes:\n");
    for regime in &regimes::ALL {
        text.push_str(&format!("  {:<14} {}\n", regime.name, regime.question));
    }
    text
}

/// A reader that has gone away (`| head`) is no reason to complain.
fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}
