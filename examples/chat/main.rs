//! A chat server on cabrank: lines, mailboxes, timers.
//!
//! ```text
//! cargo run --release --example chat                     # serve 127.0.0.1:7001 until SIGINT
//! cargo run --release --example chat -- --self-test      # serve clients of its own, and check
//! nc 127.0.0.1 7001                                      # say your name, then whatever you like
//! ```
//!
//! - `room.rs`: who is there; a broadcast is a message to everybody's mailbox
//! - `member.rs`: one connection, the protocol
//! - `server.rs`: listener, timers, signals
//! - `self_test.rs`: clients, and what they have to see

mod args;
mod member;
mod room;
mod self_test;
mod server;

use std::error::Error;
use std::process::ExitCode;

use args::{Args, Mode};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chat: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args = Args::parse(std::env::args_os())?;
    match args.mode {
        Mode::Help => print!("{}", args::HELP),
        Mode::Serve => server::serve(&args)?,
        Mode::SelfTest => println!("{}", self_test::run(&args)?),
    }
    Ok(())
}
