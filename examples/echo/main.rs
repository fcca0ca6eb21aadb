//! An echo server on cabrank, and a load to drive it.
//!
//! ```text
//! cargo run --release --example echo                     # serve 127.0.0.1:7000 until SIGINT
//! cargo run --release --example echo -- --drive          # serve and measure for 5 seconds
//! ```

mod args;
mod connection;
mod drive;
mod load;
mod server;
mod switches;

use std::error::Error;
use std::process::ExitCode;

use args::{Args, Mode};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args = Args::parse(std::env::args_os())?;
    match args.mode {
        Mode::Help => print!("{}", args::HELP),
        Mode::Serve => server::serve(&args)?,
        Mode::Drive => drive::drive(&args)?,
        Mode::Load => load::run(&args.load, std::io::stdout())?,
    }
    Ok(())
}
