//! The chat example as its users run it: a real process, real sockets, real signals.

mod util;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use util::PATIENCE;

fn chat() -> Command {
    util::example("chat")
}

fn run(args: &[&str]) -> Output {
    let mut command = chat();
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
        let mut child = chat().args(["--addr", "127.0.0.1:0"]).args(args).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect(&line).to_string();
        Server { child, output, address }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Whether it ended well, and what it said.
    fn end(mut self) -> (bool, String) {
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

struct Client {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Client {
    /// One who is not in yet.
    fn knock(server: &Server) -> Client {
        let stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Client { stream, lines }
    }

    /// One who is in, under a name.
    fn join(server: &Server, name: &str) -> Client {
        let mut client = Client::knock(server);
        client.say(name);
        client.hear("# welcome");
        client
    }

    fn say(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Reads until a line that begins like this.
    #[track_caller]
    fn hear(&mut self, beginning: &str) -> String {
        loop {
            let line = self.next().unwrap_or_else(|| panic!("the end instead of {beginning:?}"));
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.lines.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_string())
    }
}

#[test]
fn the_self_test_passes() {
    for options in [&[][..], &["--threads", "1"], &["--threads", "8"]] {
        let mut args = vec!["--self-test"];
        args.extend(options);
        let output = run(&args);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{options:?}: {output:?}");
        assert!(said.contains("every line reached everybody"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_line_reaches_everybody_and_so_does_the_time() {
    let server = Server::start(&["--time-every-ms", "50"]);
    let mut ann = Client::join(&server, "ann");
    let mut ben = Client::join(&server, "ben");
    ann.hear("# ben is here");
    ben.say("hello  \r");
    for client in [&mut ann, &mut ben] {
        assert_eq!(client.hear("ben: "), "ben: hello");
        assert!(client.hear("# ").contains("UTC"));
    }
    ann.say("/who");
    while ann.next().unwrap() != "# 2 are here" {}
    ben.say("/quit");
    ben.hear("# bye");
    assert_eq!(ben.next(), None);
    ann.hear("# ben has left");
}

#[test]
fn who_is_silent_is_told_and_turned_out() {
    let server = Server::start(&["--idle-timeout-ms", "100", "--time-every-ms", "10"]);
    let mut client = Client::join(&server, "ann");
    client.hear("# you have been silent");
    while client.next().is_some() {}
    // Nor may one keep its name to itself.
    let mut nameless = Client::knock(&server);
    nameless.hear("# you have been silent");
}

#[test]
fn one_too_many_waits_until_somebody_leaves() {
    let server = Server::start(&["--max-connections", "2"]);
    let (mut ann, _ben) = (Client::join(&server, "ann"), Client::join(&server, "ben"));
    let mut carl = Client::knock(&server);
    carl.say("carl");
    carl.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(carl.lines.fill_buf().is_err(), "let in although there is no place");
    carl.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    ann.say("/quit");
    carl.hear("# welcome, carl");
}

#[test]
fn a_signal_ends_it_with_a_word_to_everybody() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let server = Server::start(&["--threads", "2"]);
        let mut clients: Vec<Client> =
            ["ann", "ben", "carl"].iter().map(|name| Client::join(&server, name)).collect();
        clients[0].say("last words");
        clients[0].hear("ann: last words");
        server.signal(signal);
        for client in &mut clients {
            client.hear("# the server is going down");
            assert_eq!(client.next(), None);
        }
        drop(clients);
        let (well, said) = server.end();
        assert!(well, "{said}");
        assert!(said.contains("3 have been here"), "{said}");
    }
}

#[test]
fn bad_options_get_a_sentence_and_a_failure() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (args, expected) in [
        (&["--addr", taken.as_str()][..], "it is in use"),
        (&["--addr", "nonsense"], "expected HOST:PORT"),
        (&["--threads", "0"], "at least one thread"),
        (&["--max-connections", "0"], "nobody could come in"),
        (&["--idle-timeout-ms", "0"], "at least one millisecond"),
        (&["--self-test", "--max-connections", "3"], "--max-connections 10 or more"),
        (&["--no-such-option"], "--no-such-option"),
    ] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?} succeeded");
        assert!(said.contains(expected), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
    let help = run(&["--help"]);
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).contains("--idle-timeout-ms"));
}
