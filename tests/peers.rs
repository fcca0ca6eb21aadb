//! The C++ peers of `cargo bench --bench compare`: they are built where they can be, and do what they are
//! compared for.

#[path = "../benches/compare/peers.rs"]
mod peers;
mod util;

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use util::{PATIENCE, Watchdog};

#[test]
fn every_size_comes_back_whole_on_many_connections() {
    let _watchdog = Watchdog::without_pool();
    for_each_peer(|name, program| {
        for unix in [None, Some(socket_path(name, "sizes"))] {
            let server = Server::start(program, unix.as_deref(), &["--threads", "4"]);
            thread::scope(|scope| {
                for number in 0..50 {
                    let server = &server;
                    scope.spawn(move || {
                        let mut stream = server.connect();
                        for size in [1, 64, 16 * 1024, 16 * 1024 + 1, 256 * 1024] {
                            exchange(&mut stream, &message(number, size), Duration::ZERO);
                        }
                    });
                }
            });
            server.end();
            assert!(unix.is_none_or(|path| !path.exists()), "{name}: the socket is left behind");
        }
    });
}

/// More than all buffers hold, to a peer that reads late: partial writes, nothing lost.
#[test]
fn a_slow_reader_gets_everything() {
    let _watchdog = Watchdog::without_pool();
    for_each_peer(|name, program| {
        for unix in [None, Some(socket_path(name, "slow"))] {
            let server = Server::start(program, unix.as_deref(), &["--threads", "2"]);
            let mut stream = server.connect();
            exchange(&mut stream, &message(7, 16 << 20), Duration::from_millis(100));
            exchange(&mut stream, b"and it reads again", Duration::ZERO);
            server.end();
        }
    });
}

#[test]
fn a_request_that_blocks_stops_nobody_else() {
    let _watchdog = Watchdog::without_pool();
    for_each_peer(|name, program| {
        let options = ["--threads", "2", "--work-us", "1", "--block-us", "1500000"];
        let server = Server::start(program, None, &options);
        let mut others: Vec<_> = (0..10).map(|_| server.connect()).collect();
        let mut blocked = server.connect();
        blocked.send(b"B");
        for stream in &mut others {
            exchange(stream, b"x", Duration::ZERO);
        }
        assert!(!blocked.has_answer(), "{name}: a request that begins with B has not blocked");
        blocked.receive(b"B");
        server.end();
    });
}

#[test]
fn as_many_connections_are_held_as_is_said() {
    let _watchdog = Watchdog::without_pool();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    for_each_peer(|name, program| {
        let Some(connections) = peers::most_connections(name) else { return };
        let server = Server::start(program, None, &["--threads", "2"]);
        let mut streams: Vec<_> = (0..connections).map(|_| server.connect()).collect();
        for stream in &mut streams {
            exchange(stream, b"x", Duration::ZERO);
        }
        // That is a limit and no choice: there is no room for half as many again.
        let further = (0..connections / 2).map(|_| server.connect()).collect::<Vec<_>>();
        assert!(further.into_iter().any(|mut stream| stream.is_closed()), "{name}: no limit");
        exchange(&mut streams[0], b"and it goes on", Duration::ZERO);
        server.end();
    });
}

#[test]
fn bad_arguments_are_answered_with_a_sentence() {
    let _watchdog = Watchdog::without_pool();
    for_each_peer(|name, program| {
        for (arguments, complaint) in [
            (&["--threads", "0"][..], "--threads 0: expected a number from 1 to 1024"),
            (&["--work-us", "5x"], "--work-us 5x: expected a number"),
            (&["--block-us", "-1"], "--block-us -1: expected a number"),
            (&["--threads"], "--threads: a value is missing"),
            (&["--unix", ""], "--unix: the path is empty"),
            (&["--colour", "red"], "--colour: expected --threads"),
        ] {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null());
            let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{name} {arguments:?}: {output:?}");
            assert!(said.contains(complaint) && said.lines().count() == 1, "{name}: {said}");
            assert!(output.stdout.is_empty(), "{name}: {output:?}");
        }
    });
}

#[test]
fn what_is_missing_is_named() {
    const TEST: &str = "what_is_missing_is_named";
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-peers-yet");
    if util::process_role().is_some() {
        let _watchdog = Watchdog::without_pool();
        for name in peers::NAMES.into_iter().chain(["nothing"]) {
            println!("{}", peers::build(name, &fresh).expect_err("nothing that can be built"));
        }
        return;
    }
    let said_with = |compiler: &str| {
        let mut command = util::again(TEST, TEST);
        command.env("CXX", compiler).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = util::output_in_time(command);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = said_with("no-such-compiler -v");
    assert!(said.contains("CXX is \"no-such-compiler -v\""), "{said}");
    assert!(said.contains("nothing: no such peer; there are ace-tp, ace-dev-poll, asio"), "{said}");
    if Command::new("c++").arg("--version").output().is_err() {
        skip("there is no C++ compiler here");
        return;
    }
    let said = said_with("c++ -nostdinc -nostdinc++");
    assert!(said.contains("<ace/TP_Reactor.h> is not installed (on Debian: libace-dev)"), "{said}");
    assert!(said.contains("<asio.hpp> is not installed (on Debian: libasio-dev)"), "{said}");
    // Something that the headers are there for and the compiler still refuses.
    let said = said_with("c++ -DBUFFER=-");
    for name in programs().iter().filter(|(_, built)| built.is_ok()).map(|(name, _)| name) {
        let complaint = format!("{name}: cannot be built: ");
        let line = said.lines().find(|line| line.contains(&complaint)).expect(&said);
        assert!(line.contains("error: "), "{said}");
    }
    assert!(fs::read_dir(fresh.join("peers")).is_ok_and(|mut left| left.next().is_none()));
}

#[test]
fn a_program_that_is_newer_than_its_source_is_not_built_again() {
    let _watchdog = Watchdog::without_pool();
    for_each_peer(|name, program| {
        let built = fs::metadata(program).unwrap().modified().unwrap();
        assert_eq!(peers::build(name, &target()).as_deref(), Ok(program));
        assert_eq!(fs::metadata(program).unwrap().modified().unwrap(), built, "{name}");
    });
}

/// Calls `check` with each peer that can be built here, all at the same time.
fn for_each_peer(check: impl Fn(&str, &Path) + Sync) {
    thread::scope(|scope| {
        for (name, program) in programs() {
            if let Ok(program) = program {
                scope.spawn(|| check(name, program));
            }
        }
    });
}

/// The peers; says which cannot be built here, and why.
fn programs() -> &'static [(&'static str, Result<PathBuf, String>)] {
    static PROGRAMS: OnceLock<Vec<(&str, Result<PathBuf, String>)>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        thread::scope(|scope| {
            let build = |name| {
                scope.spawn(move || {
                    (name, peers::build(name, &target()).inspect_err(|why| skip(why)))
                })
            };
            peers::NAMES.map(build).map(|thread| thread.join().unwrap()).into()
        })
    })
}

/// Plainly: what is printed would be seen of failed tests only.
fn skip(why: &str) {
    let _ = writeln!(io::stderr(), "skipped: {why}");
}

/// Where the benchmark has them too.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().into()
}

fn socket_path(name: &str, test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("cabrank-{name}-{test}-{}", std::process::id()))
}

/// Bytes that differ by where they are and whose they are.
fn message(number: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + at / 251 + number) as u8).collect()
}

/// Sends and receives at the same time, receiving a little later.
#[track_caller]
fn exchange(stream: &mut Stream, message: &[u8], later: Duration) {
    let mut sender = stream.clone();
    thread::scope(|scope| {
        if message.len() > 16 * 1024 {
            scope.spawn(move || sender.send(message));
        } else {
            sender.send(message);
        }
        thread::sleep(later);
        stream.receive(message);
    });
}

/// A peer that runs; killed if a test forgets it.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
    address: String,
}

impl Server {
    fn start(program: &Path, unix: Option<&Path>, options: &[&str]) -> Server {
        let mut command = Command::new(program);
        command.args(options).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(path) = unix {
            command.arg("--unix").arg(path);
        }
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let input = child.stdin.take();
        Server { child, input, address: line.trim().into() }
    }

    fn connect(&self) -> Stream {
        let patience = Some(PATIENCE);
        if self.address.starts_with('/') {
            let stream = UnixStream::connect(&self.address).unwrap();
            stream.set_read_timeout(patience).unwrap();
            Stream::Unix(stream)
        } else {
            let stream = TcpStream::connect(&self.address).unwrap();
            stream.set_read_timeout(patience).unwrap();
            Stream::Tcp(stream)
        }
    }

    /// Ends with its input, not with what comes in it.
    fn end(mut self) {
        let mut input = self.input.take().unwrap();
        input.write_all(b"\n").unwrap();
        assert!(self.child.try_wait().unwrap().is_none(), "ended before its input");
        drop(input);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn clone(&self) -> Stream {
        match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone().unwrap()),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone().unwrap()),
        }
    }

    #[track_caller]
    fn send(&mut self, message: &[u8]) {
        match self {
            Stream::Tcp(stream) => stream.write_all(message).unwrap(),
            Stream::Unix(stream) => stream.write_all(message).unwrap(),
        }
    }

    #[track_caller]
    fn receive(&mut self, message: &[u8]) {
        let mut answer = vec![0; message.len()];
        match self {
            Stream::Tcp(stream) => stream.read_exact(&mut answer).unwrap(),
            Stream::Unix(stream) => stream.read_exact(&mut answer).unwrap(),
        }
        assert!(answer == message, "{} bytes came back changed", message.len());
    }

    fn has_answer(&self) -> bool {
        let Stream::Tcp(stream) = self else { panic!("only asked of TCP") };
        stream.set_nonblocking(true).unwrap();
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Whether the other side has closed it.
    fn is_closed(&mut self) -> bool {
        let Stream::Tcp(stream) = self else { panic!("only asked of TCP") };
        let sent = stream.write_all(b"x");
        sent.is_err() || !matches!(stream.read(&mut [0]), Ok(1))
    }
}
