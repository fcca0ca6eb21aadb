//! The example as its users run it: a real process, real sockets, real signals.

mod util;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use util::PATIENCE;

/// `cargo test` builds the examples beside the tests.
fn echo() -> Command {
    let test = std::env::current_exe().unwrap();
    let target: PathBuf = test.parent().unwrap().parent().unwrap().into();
    let example = target.join("examples/echo");
    assert!(example.exists(), "{} is missing: cargo build --examples", example.display());
    let mut command = Command::new(example);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Output {
    let mut command = echo();
    command.args(args);
    util::output_in_time(command)
}

/// A server that is killed if a test forgets it.
struct Server {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    address: String,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        let mut child = echo().args(args).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect(&line).to_string();
        Server { child, output, address }
    }

    /// Sends a signal; whether it ended well, and what it said.
    fn stop(mut self, signal: Signal) -> (bool, String) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().success(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn drive_prints_the_figures_and_ends_well() {
    for options in [
        &["--threads", "4"][..],
        &["--deactivation", "edge", "--order", "fifo", "--leaders", "1"],
        &["--papers", "--order", "unordered"],
        &["--events", "8", "--running", "1", "--spin-us", "20", "--order", "priority", "--pin"],
        &["--work-us", "5", "--rate", "2000"],
    ] {
        let mut args = vec!["--drive", "--seconds", "0.3", "--connections", "8"];
        args.extend(options);
        let output = run(&args);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{options:?}: {output:?}");
        for figure in [
            "requests/s",
            "latency p50",
            "latency p99 ",
            "latency p99.9",
            "voluntary sw./request",
            "promotions/request",
            "echo-0",
            "total",
            "nobody in epoll_wait",
        ] {
            assert!(said.contains(figure), "{options:?}: no {figure} in\n{said}");
        }
    }
}

#[test]
fn drive_works_over_unix_sockets() {
    let path = std::env::temp_dir().join(format!("cabrank-drive-{}", std::process::id()));
    let path = path.to_str().unwrap();
    let output = run(&["--drive", "--seconds", "0.3", "--unix", path, "--connections", "4"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!std::path::Path::new(path).exists(), "the socket is left behind");
}

#[test]
fn signals_stop_it_gracefully_with_a_table_of_roles() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let server = Server::start(&["--addr", "127.0.0.1:0", "--threads", "3"]);
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
        let (well, said) = server.stop(signal);
        assert!(well, "{said}");
        assert!(said.contains("echo-2") && said.contains("total"), "{said}");
    }
}

/// Far more than all buffers together, to a peer that reads late: partial writes, nothing lost.
#[test]
fn a_large_message_to_a_slow_reader_comes_back_whole() {
    let path = std::env::temp_dir().join(format!("cabrank-large-{}", std::process::id()));
    let path = path.to_str().unwrap();
    for deactivation in ["oneshot", "edge"] {
        let server = Server::start(&["--unix", path, "--deactivation", deactivation]);
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 251) as u8).collect();
        let (mut writer, to_send) = (stream.try_clone().unwrap(), sent.clone());
        let writing = thread::spawn(move || writer.write_all(&to_send).unwrap());
        thread::sleep(std::time::Duration::from_millis(50));
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received).unwrap();
        writing.join().unwrap();
        assert!(received == sent, "the echo differs");
        assert!(server.stop(Signal::SIGTERM).0);
    }
}

#[test]
fn a_blocking_request_does_not_hold_up_the_others() {
    let server = Server::start(&["--addr", "127.0.0.1:0", "--block-us", "300000"]);
    let connect = || {
        let stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let (mut blocked, mut other) = (connect(), connect());
    blocked.write_all(b"B").unwrap();
    for _ in 0..50 {
        other.write_all(b"x").unwrap();
        other.read_exact(&mut [0]).unwrap();
    }
    // All of them before the one that sleeps: its answer is still to come.
    blocked.set_nonblocking(true).unwrap();
    let still = blocked.read(&mut [0]).unwrap_err();
    assert_eq!(still.kind(), std::io::ErrorKind::WouldBlock);
    blocked.set_nonblocking(false).unwrap();
    blocked.read_exact(&mut [0]).unwrap();
}

#[test]
fn bad_options_get_a_sentence_and_a_failure() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (args, expected) in [
        (&["--addr", taken.as_str()][..], "cannot listen on"),
        (&["--addr", "nonsense"], "expected HOST:PORT"),
        (&["--threads", "0"], "at least one thread"),
        (&["--threads", "2", "--leaders", "3"], "3 leaders"),
        (&["--order", "random"], "expected lifo"),
        (&["--drive", "--connections", "0"], "more than zero"),
        (&["--no-such-option"], "--no-such-option"),
    ] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?} succeeded");
        assert!(said.contains(expected), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}
