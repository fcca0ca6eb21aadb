//! Peers that are silent, slow or deaf, by the thousand, beside honest ones: who pays for whom.

mod util;

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::ops::ControlFlow;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::net::{
    Accepted, Connection, ConnectionOptions, End, Lines, Link, ListenOptions, Permit, Protocol,
};
use cabrank::{Context, Deactivation, HandleId, Pool};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use socket2::{Domain, SockRef, Socket, Type};
use util::{Counter, PATIENCE, pool, soak, wait_until};

/// How many of each kind.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    /// Connect, and say nothing.
    idle: usize,
    /// Say a byte a second, and never finish their line.
    slow: usize,
    /// Ask and ask, and never read an answer.
    deaf: usize,
    /// Ask, and read the answer.
    honest: usize,
}

const WANTED: Crowd = Crowd { idle: 9_000, slow: 500, deaf: 500, honest: 100 };

/// Short, because the test waits for it; nobody is ended by it before the test says so.
const IDLE: Duration = Duration::from_secs(1);

impl Crowd {
    /// As many as there are descriptors for.
    fn possible() -> Crowd {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        // Besides the connections there are the pool's own, standard input and output, and the like.
        let room = usize::try_from(hard).unwrap_or(usize::MAX) - 500;
        if room >= WANTED.total() {
            return WANTED;
        }
        let part = |count: usize| (count * room / WANTED.total()).max(1);
        let crowd = Crowd {
            idle: part(WANTED.idle),
            slow: part(WANTED.slow),
            deaf: part(WANTED.deaf),
            honest: part(WANTED.honest),
        };
        println!("skipped: {} peers only, the descriptor limit is {hard}", crowd.total());
        crowd
    }

    fn total(self) -> usize {
        self.idle + self.slow + self.deaf + self.honest
    }
}

// The clients, in a process of their own.

/// Does what the server's process says, line by line, and answers each line with one.
fn clients(address: SocketAddr) {
    let crowd = Crowd::possible();
    let stop = Arc::new(AtomicBool::new(false));
    let (mut idle, mut slow, mut deaf) = (Vec::new(), Vec::new(), Vec::new());
    let mut talking = Vec::new();
    let answers = Counter::new();
    for line in io::stdin().lines() {
        let answer = match line.unwrap().as_str() {
            "connect" => {
                let mut number = 0..;
                let mut some = |count: usize| -> Vec<TcpStream> {
                    number.by_ref().take(count).map(|number| connect(number, address)).collect()
                };
                (idle, slow, deaf) = (some(crowd.idle), some(crowd.slow), some(crowd.deaf));
                for share in 0..4 {
                    let streams = some((crowd.honest + share) / 4);
                    let (stop, answers) = (Arc::clone(&stop), answers.clone());
                    talking.push(thread::spawn(move || talk(streams, &stop, &answers)));
                }
                crowd.total()
            }
            "drip" => slow.iter_mut().map(|stream| stream.write(b"x").unwrap_or(0)).sum(),
            "shout" => deaf.iter_mut().map(shout).sum(),
            // All but the honest ones are to be turned out.
            "leave" => {
                let streams = idle.drain(..).chain(slow.drain(..)).chain(deaf.drain(..));
                streams.map(await_end).filter(|&ended| ended).count()
            }
            "answers" => answers.get() as usize,
            "stop" => {
                stop.store(true, Ordering::SeqCst);
                let latencies: Vec<Duration> =
                    talking.drain(..).flat_map(|thread| thread.join().unwrap()).collect();
                eprintln!("latency of the honest: {}", summary(latencies));
                answers.get() as usize
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
    // The kernel's share of what the deaf ones do not read: it is the server's that is looked at.
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    socket.set_send_buffer_size(16 * 1024).unwrap();
    socket.bind(&SocketAddrV4::new(from, 0).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Asks until nothing goes any more; how many bytes went.
fn shout(stream: &mut TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let lines = b"a question whose answer nobody is going to read\n".repeat(100);
    let mut sent = 0;
    while let Ok(bytes @ 1..) = stream.write(&lines) {
        sent += bytes;
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

/// Asks and reads, on all streams at once, until told to stop; how long each round took.
fn talk(mut streams: Vec<TcpStream>, stop: &AtomicBool, answers: &Counter) -> Vec<Duration> {
    let mut latencies = Vec::new();
    for round in 0_u32.. {
        let question = format!("question {round}\n");
        let start = Instant::now();
        for stream in &mut streams {
            stream.write_all(question.as_bytes()).expect("an honest client can write");
        }
        let mut answer = vec![0; question.len()];
        for stream in &mut streams {
            stream.read_exact(&mut answer).expect("an honest client is served");
            assert_eq!(answer, question.as_bytes());
            latencies.push(start.elapsed());
            answers.add(1);
        }
        if stop.load(Ordering::SeqCst) {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    latencies
}

/// Whether the server ends the connection; what it has sent before is skipped.
fn await_end(mut stream: TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn summary(mut latencies: Vec<Duration>) -> String {
    latencies.sort_unstable();
    let at =
        |part: usize| latencies.get(latencies.len() * part / 1_000).copied().unwrap_or_default();
    let last = latencies.last().copied().unwrap_or_default();
    format!("p50 {:?}, p99 {:?}, longest {last:?}", at(500), at(990))
}

// The server.

/// Gives every line back.
struct Echo {
    tally: Tally,
    _permit: Permit,
}

/// How the connections have ended.
#[derive(Clone, Debug, Default)]
struct Tally {
    idle: Counter,
    slow: Counter,
    finished: Counter,
    other: Counter,
    /// Silence may end a connection.
    strict: Arc<AtomicBool>,
}

impl Protocol for Echo {
    fn frame(&mut self, line: &[u8], link: &mut Link<'_>) {
        link.put(line);
        link.put(b"\n");
    }

    fn idle(&mut self, _link: &mut Link<'_>) -> ControlFlow<()> {
        if self.tally.strict.load(Ordering::SeqCst) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn ended(&mut self, _id: HandleId, end: End) {
        let counter = match &end {
            End::Idle { .. } => &self.tally.idle,
            End::SlowFrame { .. } => &self.tally.slow,
            End::Finished => &self.tally.finished,
            _ => {
                eprintln!("a connection has ended: {end}");
                &self.tally.other
            }
        };
        counter.add(1);
    }
}

fn bear_them_all(test: &str, deactivation: Deactivation) {
    let role = util::process_role();
    if let Some(address) = role.as_deref().and_then(|role| role.strip_prefix("clients of ")) {
        return clients(address.parse().unwrap());
    }
    // One at a time: both together would need more descriptors than a process may have.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _only = ONE_AT_A_TIME.lock();
    let crowd = Crowd::possible();
    let (pool, _watchdog) = pool(Pool::builder().threads(4).deactivation(deactivation));
    let tally = Tally::default();
    let options = ConnectionOptions::new()
        .water_marks(1_024, 8 * 1_024)
        .idle_timeout(IDLE)
        // From the first byte, which comes when all are there.
        .request_timeout(soak() + IDLE);
    let listen = ListenOptions::new().backlog(4_096).max_connections(crowd.total()).nodelay();
    let listener = listen.tcp((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let of_all = tally.clone();
    let callback = move |accepted: Accepted<TcpStream>, cx: &mut Context<'_>| {
        let (stream, permit) = accepted.into_parts();
        SockRef::from(&stream).set_send_buffer_size(16 * 1024).unwrap();
        let echo = Echo { tally: of_all.clone(), _permit: permit };
        let connection = Connection::with_options(stream, Lines::new(1_000), echo, options);
        connection.register(cx.handles()).unwrap();
    };
    let before = util::resident_memory();
    let accepting = listener.register(pool.handles(), callback).unwrap();

    let mut command = util::again(test, &format!("clients of {address}"));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut client = command.spawn().unwrap();
    let mut commands = client.stdin.take().unwrap();
    let mut lines = BufReader::new(client.stderr.take().unwrap()).lines();
    let mut tell = |what: &str| -> usize {
        writeln!(commands, "{what}").unwrap();
        loop {
            let line = lines.next().expect("an answer of the clients").unwrap();
            match line.strip_prefix("> ") {
                Some(answer) => return answer.parse().unwrap(),
                None => println!("{line}"),
            }
        }
    };

    assert_eq!(tell("connect"), crowd.total());
    wait_until("all are there", || accepting.counts().open == crowd.total());
    // Until everything between the deaf ones and the server is full.
    let mut shouted = 0;
    wait_until("no word goes any more", || {
        let more = tell("shout");
        shouted += more;
        thread::sleep(Duration::from_millis(20));
        more == 0
    });
    assert_eq!(tell("drip"), crowd.slow);
    thread::sleep(Duration::from_millis(50));
    let full = util::resident_memory();
    let answers = tell("answers");
    let until = Instant::now() + soak();
    let mut seconds = 0;
    while Instant::now() < until {
        tell("drip");
        thread::sleep(Duration::from_secs(1).min(soak()));
        shouted += tell("shout");
        seconds += 1;
    }
    // Everybody is still there, the honest ones have been served, and it has cost nothing.
    assert_eq!(accepting.counts().open + tally.slow.get() as usize, crowd.total());
    let later = util::resident_memory();
    let served = tell("answers") - answers;
    assert!(served > crowd.honest, "{served} answers to {} honest clients", crowd.honest);
    let each = full.saturating_sub(before) / crowd.total() as u64;
    let grown = later.saturating_sub(full);
    println!("{each} bytes for each peer, {grown} more in all after {seconds} s");
    assert!(each < 16 * 1024 && grown < 1 << 20, "{each} bytes each, {grown} more later");
    assert!(shouted > 0);

    // Now those are turned out who have deserved it, and no other.
    tell("drip");
    tally.strict.store(true, Ordering::SeqCst);
    wait_until("the slow are gone", || {
        // They are not silent, and it does not help them.
        tell("drip");
        thread::sleep(IDLE / 10);
        tally.slow.get() == crowd.slow as u64
    });
    assert_eq!(tell("leave"), crowd.total() - crowd.honest);
    wait_until("only the honest are left", || accepting.counts().open == crowd.honest);
    assert_eq!(tally.idle.get(), (crowd.idle + crowd.deaf) as u64);
    let answers = tell("answers");
    wait_until("the honest are served on", || tell("answers") > answers + crowd.honest);
    tell("stop");
    drop(commands);
    assert!(client.wait().unwrap().success());
    wait_until("all are gone", || accepting.counts().open == 0);
    assert_eq!((tally.finished.get(), tally.other.get()), (crowd.honest as u64, 0));
}

#[test]
fn slow_silent_and_deaf_peers_cost_the_honest_nothing() {
    let test = "slow_silent_and_deaf_peers_cost_the_honest_nothing";
    bear_them_all(test, Deactivation::OneShot);
}

#[test]
fn slow_silent_and_deaf_peers_cost_the_honest_nothing_by_edge() {
    let test = "slow_silent_and_deaf_peers_cost_the_honest_nothing_by_edge";
    bear_them_all(test, Deactivation::Edge);
}
