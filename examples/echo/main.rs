//! An echo server on cabrank, and a load to drive it.
//!
//! ```text
//! cargo run --release --example echo                     # serve 127.0.0.1:7000 until SIGINT
//! cargo run --release --example echo -- --drive          # serve and measure for 5 seconds
//! ```

mod acceptor;
mod args;
mod connection;
mod drive;
mod guest;
mod load;
mod output;
mod server;
mod stop;
mod switches;

use std::error::Error;
use std::process::ExitCode;

use args::{Args, Mode};
use output::{complain, say};

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        complain!("{error}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse(std::env::args_os())?;
    match args.mode {
        Mode::Help => say!("{}", args::HELP.trim_end())?,
        Mode::Serve => server::serve(&args)?,
        Mode::Drive => return drive::drive(&args),
        Mode::Load => load::run(&args.load, std::io::stdout())?,
    }
    Ok(ExitCode::SUCCESS)
}
