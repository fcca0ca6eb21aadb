//! The example as its users run it: a real process, real sockets, real signals.

mod util;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use util::PATIENCE;

fn echo() -> Command {
    util::example("echo")
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
        Server::spawn(echo().args(args))
    }

    fn spawn(command: &mut Command) -> Server {
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect(&line).to_string();
        Server { child, output, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end; how it ended, and what it said.
    fn end(mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    /// Sends a signal; whether it ended well, and what it said.
    fn stop(self, signal: Signal) -> (bool, String) {
        self.signal(signal);
        let (status, said) = self.end();
        (status.success(), said)
    }
}

#[track_caller]
fn ping(stream: &mut TcpStream) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
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
            "noted: ",
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
        thread::sleep(Duration::from_millis(50));
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
    let (mut blocked, mut other) = (server.connect(), server.connect());
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
        (&["--addr", "nonsense"], "--addr nonsense: expected HOST:PORT"),
        (&["--addr", "no.such.host.invalid:80"], "--addr no.such.host.invalid:80: "),
        (&["--unix", "/dev/null"], "--unix /dev/null: "),
        (&["--unix", "/tmp/unused", "--addr", "7000"], "--addr and --unix"),
        (&["--threads", "0"], "--threads 0: expected at least 1"),
        (&["--threads", "many"], "--threads many: expected a number"),
        (&["--threads", "100000"], "--threads 100000: "),
        (&["--threads"], "--threads"),
        (&["--events", "5000"], "--events 5000: "),
        (&["--threads", "2", "--leaders", "3"], "--leaders 3 --threads 2: 3 leaders"),
        (&["--order", "random"], "--order random: expected lifo"),
        (&["--papers", "--leaders", "2"], "--leaders"),
        (&["--events", "2", "--papers"], "--events"),
        (&["--idle-timeout-ms", "0"], "--idle-timeout-ms 0: "),
        (&["--max-connections", "0"], "--max-connections 0: "),
        (&["--drive", "--connections", "9", "--max-connections", "8"], "--max-connections 8: "),
        (&["--drive", "--connections", "0"], "--connections 0: expected more than zero"),
        (&["--drive", "--seconds", "1e300"], "--seconds 1e300: "),
        (&["--drive", "--seconds", "nan"], "--seconds NaN: "),
        (&["--drive", "--size", "99999999999999"], "--size 99999999999999: "),
        (&["--drive", "--rate", "0"], "--rate 0"),
        (&["--drive", "--block-us", "1", "--block-percent", "200"], "--block-percent 200: "),
        (&["--drive", "--block-percent", "2"], "without --block-us"),
        (&["--seconds", "3"], "--seconds is for the load: add --drive"),
        (&["--connections", "3"], "--connections is for"),
        (&["--size", "3"], "--size is for"),
        (&["--rate", "3"], "--rate is for"),
        (&["--block-percent", "3"], "--block-percent is for"),
        (&["--no-such-option"], "--no-such-option"),
    ] {
        // Whoever has the port it would listen on by itself is not to be heard of here.
        let has_its_own = args.iter().any(|arg| ["--addr", "--unix", "--drive"].contains(arg));
        let any_port = if has_its_own { &[][..] } else { &["--addr", "127.0.0.1:0"] };
        let output = run(&[any_port, args].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?} succeeded");
        assert!(said.contains(expected), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn idle_peers_are_closed_and_busy_ones_are_not() {
    let server = Server::start(&["--addr", "127.0.0.1:0", "--idle-timeout-ms", "400"]);
    let (mut silent, mut said_once, mut busy) =
        (server.connect(), server.connect(), server.connect());
    ping(&mut said_once);
    // In sum far longer than the time-out, with pauses that are far shorter.
    for _ in 0..30 {
        ping(&mut busy);
        thread::sleep(Duration::from_millis(40));
    }
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "closed");
    assert_eq!(said_once.read(&mut [0]).unwrap(), 0, "closed");
    assert!(server.stop(Signal::SIGTERM).0);
}

/// A peer that sends and never reads is idle too, once all buffers are full.
#[test]
fn a_peer_that_never_reads_is_closed() {
    let server = Server::start(&["--addr", "127.0.0.1:0", "--idle-timeout-ms", "300"]);
    let mut stream = server.connect();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let refused = loop {
        if let Err(error) = stream.write_all(&[b'x'; 65_536]) {
            break error.kind();
        }
    };
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    assert!(matches!(refused, BrokenPipe | ConnectionReset), "{refused:?}");
}

#[test]
fn beyond_the_limit_connections_wait_for_others_to_close() {
    for deactivation in ["oneshot", "edge"] {
        let server = Server::start(&[
            "--addr",
            "127.0.0.1:0",
            "--max-connections",
            "3",
            "--deactivation",
            deactivation,
        ]);
        let mut served: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
        served.iter_mut().for_each(ping);
        // Connected by the kernel, and left in the backlog.
        let mut waiting: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
        for stream in &mut waiting {
            stream.write_all(b"w").unwrap();
        }
        thread::sleep(Duration::from_millis(50));
        waiting[0].set_nonblocking(true).unwrap();
        let still = waiting[0].read(&mut [0]).unwrap_err();
        assert_eq!(still.kind(), std::io::ErrorKind::WouldBlock);
        waiting[0].set_nonblocking(false).unwrap();
        served.iter_mut().for_each(ping);
        // Each that goes lets one in.
        drop(served);
        for mut stream in waiting {
            stream.read_exact(&mut [0]).unwrap();
        }
        assert!(server.stop(Signal::SIGTERM).0);
    }
}

/// Seats are given back while the acceptor is about to find that there is none: no call is lost.
#[test]
fn a_seat_given_back_at_any_moment_is_taken() {
    let server = Server::start(&["--addr", "127.0.0.1:0", "--max-connections", "1"]);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..150).for_each(|_| ping(&mut server.connect())));
        }
    });
    assert!(server.stop(Signal::SIGTERM).0);
}

/// What cannot be taken is left for a while, not tried over and over; and it is taken in the end.
#[test]
fn out_of_descriptors_it_waits_and_recovers() {
    let mut command = Command::new("sh");
    let script = "ulimit -n 24; exec \"$0\" --addr 127.0.0.1:0 --threads 2";
    command.args(["-c", script]).arg(echo().get_program());
    let server = Server::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut streams: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
    streams.iter_mut().for_each(|stream| stream.write_all(b"x").unwrap());
    thread::sleep(Duration::from_millis(100));
    let on_cpu = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
        let times = tasks.map(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
            stat.split(' ').next().unwrap().parse::<u64>().unwrap()
        });
        Duration::from_nanos(times.sum())
    };
    let before = on_cpu();
    thread::sleep(Duration::from_millis(500));
    let used = on_cpu() - before;
    // A thread that spins has all of it.
    assert!(used < Duration::from_millis(200), "{used:?}");
    for mut stream in streams {
        // Each that has its answer goes, and makes room.
        stream.read_exact(&mut [0]).unwrap();
    }
    assert!(server.stop(Signal::SIGTERM).0);
}

/// The threads of the pool hear nothing then. The second signal does not wait.
#[test]
fn it_stops_while_handlers_occupy_every_thread() {
    let options = ["--addr", "127.0.0.1:0", "--threads", "2", "--block-us"];
    let occupied = |microseconds| {
        let server = Server::start(&[&options[..], &[microseconds]].concat());
        let mut blocked: Vec<TcpStream> = (0..4).map(|_| server.connect()).collect();
        blocked.iter_mut().for_each(|stream| stream.write_all(b"B").unwrap());
        thread::sleep(Duration::from_millis(100));
        (server, blocked)
    };
    // For a while: it waits for them.
    let (server, _blocked) = occupied("1500000");
    let (well, said) = server.stop(Signal::SIGTERM);
    assert!(well && said.contains("total"), "{said}");
    // For too long: it says how many, and gives up.
    let (mut server, _blocked) = occupied("60000000");
    let mut complaints = server.child.stderr.take().unwrap();
    server.signal(Signal::SIGINT);
    let (status, said) = server.end();
    let mut complained = String::new();
    complaints.read_to_string(&mut complained).unwrap();
    assert_eq!(status.code(), Some(1), "{complained}");
    assert!(said.contains("total"), "{said}");
    assert!(complained.contains("on 2 of the threads"), "{complained}");
    // A second signal: at once.
    let (server, _blocked) = occupied("60000000");
    server.signal(Signal::SIGINT);
    thread::sleep(Duration::from_millis(100));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end().0.signal(), Some(Signal::SIGTERM as i32));
}

#[test]
fn an_interrupted_drive_tells_what_it_has() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let server = Server::start(&["--drive", "--seconds", "60", "--connections", "4"]);
        thread::sleep(Duration::from_millis(500));
        server.signal(signal);
        let (status, said) = server.end();
        assert_eq!(status.code(), Some(code), "{said}");
        assert!(said.contains("interrupted"), "{said}");
        assert!(said.contains("requests/s") && said.contains("total"), "{said}");
    }
}

#[test]
fn a_load_that_dies_is_reported() {
    let mut server = Server::start(&["--drive", "--seconds", "60", "--connections", "4"]);
    let id = server.child.id();
    let mut load = None;
    util::wait_until("the load is there", || {
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        load = children.split_whitespace().next().map(|id| id.parse().unwrap());
        load.is_some()
    });
    kill(Pid::from_raw(load.unwrap()), Signal::SIGKILL).unwrap();
    let mut complaints = server.child.stderr.take().unwrap();
    let (status, _) = server.end();
    let mut complained = String::new();
    complaints.read_to_string(&mut complained).unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(complained.contains("the load process ended early: signal: 9"), "{complained}");
}

#[test]
fn a_drive_without_a_single_answer_fails() {
    let output = run(&[
        "--drive",
        "--seconds",
        "0.2",
        "--connections",
        "2",
        "--block-us",
        "900000",
        "--block-percent",
        "100",
    ]);
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(complained.contains("no request was completed"), "{complained}");
    assert!(!said.contains("requests/s"), "{said}");
}

/// Progress is told also where it cannot be written over.
#[test]
fn progress_is_told_in_lines_to_those_that_are_no_terminal() {
    let output = run(&["--drive", "--seconds", "1.2", "--connections", "2"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.lines().any(|line| line.contains("of 1.2 s, ")), "{said}");
    assert!(!said.contains('\r'), "{said:?}");
}

#[test]
fn names_are_resolved_and_a_port_alone_is_local() {
    for name in ["localhost:0", ":0", "0", "[::1]:0"] {
        if name.starts_with('[') && std::net::TcpListener::bind(name).is_err() {
            println!("skipped: no IPv6 here");
            continue;
        }
        let server = Server::start(&["--addr", name]);
        let expected = if name.starts_with('[') { "[::1]:" } else { "127.0.0.1:" };
        assert!(server.address.starts_with(expected), "{name}: {}", server.address);
        ping(&mut server.connect());
        assert!(server.stop(Signal::SIGTERM).0);
    }
}

#[test]
fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
    let path = std::env::temp_dir().join(format!("cabrank-stale-{}", std::process::id()));
    let path = path.to_str().unwrap();
    let server = Server::start(&["--unix", path]);
    server.signal(Signal::SIGKILL);
    assert_eq!(server.end().0.signal(), Some(Signal::SIGKILL as i32));
    assert!(std::path::Path::new(path).exists(), "it is killed before it can remove it");
    let server = Server::start(&["--unix", path]);
    let output = run(&["--unix", path]);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && complained.contains("another server"), "{complained}");
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    assert!(server.stop(Signal::SIGTERM).0);
    assert!(!std::path::Path::new(path).exists(), "the socket is left behind");
}

#[test]
fn a_reader_that_goes_away_makes_no_panic() {
    for args in [&["--help"][..], &["--drive", "--seconds", "0.2", "--connections", "2"]] {
        let mut child = echo().args(args).spawn().unwrap();
        drop(child.stdout.take());
        let mut complained = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complained).unwrap();
        assert!(child.wait().unwrap().success(), "{args:?}: {complained}");
        assert!(!complained.contains("panicked"), "{args:?}: {complained}");
    }
}
