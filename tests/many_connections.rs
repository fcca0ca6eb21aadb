//! Ten thousand connections on one pool, with their clients in a second process.

mod util;

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cabrank::{
    Builder, Context, Deactivation, Handler, Interest, Next, Pool, Ready, Reason, handler_fn,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use socket2::{Domain, Socket, Type};

use util::{Counter, PATIENCE, Probe, ping, pool, wait_until};

const CONNECTIONS: usize = 10_000;

/// The client connects in steps and says so after each, to see the table grow.
const STEP: usize = 1_000;

/// What each connection sends in each round, and gets back.
const ROUNDS: [&[u8]; 3] = [b"first", b"the second, somewhat longer", b"3"];

/// Room for as many descriptors as allowed; how many connections that is enough for.
fn connections() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    // Besides the connections there are the pool's own, standard input and output, and the like.
    let room = usize::try_from(hard).unwrap_or(usize::MAX) - 500;
    let steps = room.min(CONNECTIONS) / STEP;
    if steps * STEP < CONNECTIONS {
        println!("skipped: {} connections only, the descriptor limit is {hard}", steps * STEP);
    }
    steps * STEP
}

// The client.

/// Does what the server's process says, line by line, and answers each line with one.
fn client(address: SocketAddr) {
    let count = connections();
    let mut streams: Vec<TcpStream> = Vec::with_capacity(count);
    for line in io::stdin().lines() {
        let answer = match line.unwrap().as_str() {
            "connect" => {
                for _ in 0..STEP {
                    streams.push(connect(streams.len(), address));
                }
                streams.len()
            }
            "echo" => ROUNDS.iter().map(|bytes| echo(&mut streams, bytes)).sum(),
            "close half" => {
                streams.truncate(streams.len() / 2);
                streams.len()
            }
            "close" => {
                streams.clear();
                0
            }
            other => panic!("{other:?} is not known here"),
        };
        eprintln!("> {answer}");
    }
}

/// Connects from one of several addresses: each has a limited number of ports.
fn connect(number: usize, address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from = Ipv4Addr::new(127, 0, 0, 2 + (number % 5) as u8);
    // The port is chosen when the other side is known: connections to an earlier server, which
    // linger for a minute, then take none from us.
    setsockopt(&socket, IpBindAddressNoPort, &true).unwrap();
    socket.bind(&SocketAddrV4::new(from, 0).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends on all connections, then reads from all: everything is under way at once.
fn echo(streams: &mut [TcpStream], bytes: &[u8]) -> usize {
    for stream in &mut *streams {
        stream.write_all(bytes).unwrap();
    }
    let mut back = vec![0; bytes.len()];
    for stream in &mut *streams {
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, bytes);
    }
    streams.len()
}

// The server.

struct Echo {
    stream: TcpStream,
    tally: Tally,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    accepted: Counter,
    bytes: Counter,
    closed: Counter,
    /// The reasons that are not the end of the stream.
    failures: Arc<Mutex<Vec<String>>>,
}

impl AsFd for Echo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Handler for Echo {
    fn ready(&mut self, _ready: Ready, _cx: &mut Context<'_>) -> Next {
        let mut buffer = [0; 256];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Next::Close,
                Ok(count) => {
                    self.tally.bytes.add(count as u64);
                    // A few bytes always fit.
                    self.stream.write_all(&buffer[..count]).unwrap();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Next::Drained(Interest::READABLE);
                }
                Err(error) => {
                    self.tally.failures.lock().unwrap().push(error.to_string());
                    return Next::Close;
                }
            }
        }
    }

    fn closed(&mut self, _id: cabrank::HandleId, reason: Reason) {
        self.tally.closed.add(1);
        if !matches!(reason, Reason::Closed) {
            self.tally.failures.lock().unwrap().push(format!("{reason:?}"));
        }
    }
}

/// Accepts all there is and registers each from inside the handler.
fn listen(pool: &Pool, tally: &Tally) -> SocketAddr {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    socket.listen(4_096).unwrap();
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let tally = tally.clone();
    let handler = handler_fn(listener, move |listener, _ready, cx| {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true).unwrap();
                    stream.set_nodelay(true).unwrap();
                    let echo = Echo { stream, tally: tally.clone() };
                    cx.handles().register(echo, Interest::READABLE).unwrap();
                    tally.accepted.add(1);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Next::Drained(Interest::READABLE);
                }
                Err(error) => panic!("accepting: {error}"),
            }
        }
    });
    pool.handles().register(handler, Interest::READABLE).unwrap();
    address
}

/// Pings a probe again and again, beside everything else, until told to stop; every ping is
/// answered. Returns how large the table was at each.
fn ping_throughout(pool: &Pool, peer: &mut UnixStream, stop: &AtomicBool) -> Vec<usize> {
    let mut sizes = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        ping(peer);
        sizes.push(pool.handles().len());
        thread::sleep(Duration::from_micros(200));
    }
    sizes
}

fn serve_them_all(test: &str, builder: Builder) {
    let role = util::process_role();
    if let Some(address) = role.as_deref().and_then(|role| role.strip_prefix("client of ")) {
        return client(address.parse().unwrap());
    }
    // One at a time: both together would need more descriptors than a process may have.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _only = ONE_AT_A_TIME.lock();
    let count = connections();
    let (pool, _watchdog) = pool(builder);
    let tally = Tally::default();
    let address = listen(&pool, &tally);
    let (probe, mut peer) = Probe::pair(util::echo);
    let probe = pool.handles().register(probe, Interest::READABLE).unwrap();
    let others = pool.handles().len();

    let mut command = util::again(test, &format!("client of {address}"));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut client = command.spawn().unwrap();
    let mut commands = client.stdin.take().unwrap();
    let mut lines = BufReader::new(client.stderr.take().unwrap()).lines();
    let mut tell = |what: &str| -> usize {
        writeln!(commands, "{what}").unwrap();
        loop {
            let line = lines.next().expect("an answer of the client").unwrap();
            match line.strip_prefix("> ") {
                Some(answer) => return answer.parse().unwrap(),
                None => eprintln!("client: {line}"),
            }
        }
    };

    let stop = AtomicBool::new(false);
    let sizes = thread::scope(|scope| {
        let pinging = scope.spawn(|| ping_throughout(&pool, &mut peer, &stop));
        for connected in (STEP..=count).step_by(STEP) {
            assert_eq!(tell("connect"), connected);
            // A connection is there for its client before it is accepted.
            tally.accepted.wait_for(connected as u64);
            wait_until("they are registered", || pool.handles().len() == connected + others);
            assert_eq!(pool.handles().len(), connected + others);
        }
        assert_eq!(tell("echo"), ROUNDS.len() * count);
        let bytes: usize = ROUNDS.iter().map(|bytes| bytes.len() * count).sum();
        assert_eq!(tally.bytes.get(), bytes as u64, "as many as were sent");

        // Half of them go, the others are served on, and then all go.
        let half = tell("close half");
        tally.closed.wait_for((count - half) as u64);
        wait_until("half are gone", || pool.handles().len() == half + others);
        assert_eq!(tell("echo"), ROUNDS.len() * half);
        assert_eq!(tell("close"), 0);
        tally.closed.wait_for(count as u64);
        wait_until("all are gone", || pool.handles().len() == others);
        stop.store(true, Ordering::SeqCst);
        pinging.join().unwrap()
    });
    drop(commands);
    assert!(client.wait().unwrap().success());
    assert_eq!((tally.accepted.get(), tally.closed.get()), (count as u64, count as u64));
    assert_eq!(*tally.failures.lock().unwrap(), Vec::<String>::new());

    // The probe was served while the table grew.
    let growing = sizes.iter().filter(|&&size| size > others && size < count + others).count();
    assert!(growing > 0, "the table was never seen between empty and full");
    println!("{} pings, {growing} of them between empty and full", sizes.len());

    wait_until("all slots given back", || pool.handles().len() == others);
    pool.handles().remove(probe).unwrap();
    let report = pool.finish();
    assert_eq!(report.metrics.total().panics, 0);
}

#[test]
fn ten_thousand_connections_are_served_by_one_shot() {
    let builder = Pool::builder().threads(4);
    serve_them_all("ten_thousand_connections_are_served_by_one_shot", builder);
}

#[test]
fn ten_thousand_connections_are_served_by_edge() {
    let builder = Pool::builder().threads(4).deactivation(Deactivation::Edge);
    serve_them_all("ten_thousand_connections_are_served_by_edge", builder);
}
