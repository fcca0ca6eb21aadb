//! What the integration tests share.
#![allow(dead_code, unreachable_pub)] // each test file uses a part of it

pub mod refusals;
pub mod talk;
pub mod waiter;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource as rlimit;

use cabrank::{Builder, Context, Handler, Interest, Next, Pool, Ready, Reason, Remote};

/// Long enough for anything that is to happen at all, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How long soak tests run: `CABRANK_SOAK_SECONDS`, by default one second.
pub fn soak() -> Duration {
    let seconds = std::env::var("CABRANK_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(1.0))
}

/// A seed for a random test: `CABRANK_SEED`, or else the time. Printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let given = std::env::var("CABRANK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64) | 1
    });
    eprintln!("CABRANK_SEED={seed}");
    seed
}

/// xorshift64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Builds a pool and watches over it.
#[track_caller]
pub fn pool(builder: Builder) -> (Pool, Watchdog) {
    let pool = builder.build().expect("a pool of these choices");
    let watchdog = Watchdog::new(&pool);
    (pool, watchdog)
}

/// Ends the process with a dump of all roles if the pool has not ended after [`PATIENCE`] and the time of
/// a soak; whether the test still runs or has failed and waits for the pool to end.
pub struct Watchdog {
    /// Dropped with a test that has no pool to tell its end.
    done: Option<mpsc::Sender<()>>,
}

impl Watchdog {
    pub fn new(pool: &Pool) -> Watchdog {
        let remote = pool.remote();
        let test = thread::current().name().unwrap_or("a test").to_string();
        thread::spawn(move || {
            let start = Instant::now();
            while !has_ended(&remote) {
                if start.elapsed() > 2 * PATIENCE + 2 * soak() {
                    eprintln!("{test} hangs:\n{}", roles(&remote));
                    process::abort();
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        Watchdog { done: None }
    }
}

fn has_ended(remote: &Remote) -> bool {
    let away = |thread: &cabrank::ThreadMetrics| thread.role == cabrank::Role::Away;
    remote.is_shut_down() && remote.metrics().threads.iter().all(away)
}

/// Who is doing what, for people who look for a hang.
pub fn roles(remote: &Remote) -> String {
    let metrics = remote.metrics();
    let roles: Vec<String> = metrics
        .threads
        .iter()
        .map(|thread| format!("{}: {:?}", thread.name, thread.role))
        .collect();
    format!("{}\n{metrics}", roles.join("\n"))
}

/// Waits until `condition` holds.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// A counter that many hold.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    pub fn new() -> Counter {
        Counter::default()
    }

    pub fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::SeqCst) + n
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    #[track_caller]
    pub fn wait_for(&self, n: u64) {
        wait_until(&format!("{} to become {n}", self.get()), || self.get() >= n);
    }
}

/// Never more than one in at a time: the ledger of I3.
#[derive(Clone, Debug, Default)]
pub struct Exclusive(Arc<AtomicBool>);

impl Exclusive {
    #[track_caller]
    pub fn run<R>(&self, code: impl FnOnce() -> R) -> R {
        assert!(!self.0.swap(true, Ordering::SeqCst), "two threads in one handler");
        let result = code();
        self.0.store(false, Ordering::SeqCst);
        result
    }
}

/// A handler that calls a closure with its stream, and tells a counter when it is closed.
pub struct Probe<F> {
    pub stream: UnixStream,
    pub ready: F,
    pub closed: Counter,
    pub reason: Arc<std::sync::Mutex<Option<String>>>,
}

impl<F> Probe<F>
where
    F: FnMut(&mut UnixStream, Ready, &mut Context<'_>) -> Next + Send,
{
    /// The probe, and the peer's end.
    pub fn pair(ready: F) -> (Probe<F>, UnixStream) {
        let (stream, peer) = stream_pair();
        (Probe { stream, ready, closed: Counter::new(), reason: Arc::default() }, peer)
    }
}

impl<F> Handler for Probe<F>
where
    F: FnMut(&mut UnixStream, Ready, &mut Context<'_>) -> Next + Send,
{
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
        (self.ready)(&mut self.stream, ready, cx)
    }

    fn closed(&mut self, _id: cabrank::HandleId, reason: Reason) {
        *self.reason.lock().unwrap() = Some(format!("{reason:?}"));
        self.closed.add(1);
    }
}

impl<F> AsFd for Probe<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Two connected streams; the first is non-blocking, the second times out rather than hang.
pub fn stream_pair() -> (UnixStream, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    there.set_write_timeout(Some(PATIENCE)).unwrap();
    (here, there)
}

/// Reads what is there, up to one buffer; `None` at the end of the stream.
pub fn read_some(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => None,
        Ok(n) => Some(buffer[..n].to_vec()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(Vec::new()),
        Err(error) => panic!("reading: {error}"),
    }
}

/// Echoes what comes, and closes at the end of the stream.
pub fn echo(stream: &mut UnixStream, _ready: Ready, _cx: &mut Context<'_>) -> Next {
    match read_some(stream) {
        None => Next::Close,
        Some(bytes) => match stream.write_all(&bytes) {
            Ok(()) => Next::Rearm(Interest::READABLE),
            Err(_) => Next::Close,
        },
    }
}

/// Sends one byte and waits for it to come back.
#[track_caller]
pub fn ping(peer: &mut UnixStream) {
    peer.write_all(b"p").expect("a peer that reads");
    let mut back = [0];
    peer.read_exact(&mut back).expect("an echo");
    assert_eq!(&back, b"p");
}

/// A ping on each, and all the answers.
pub fn ping_all(peers: &mut [UnixStream]) {
    for peer in &mut *peers {
        peer.write_all(b"p").unwrap();
    }
    for peer in peers {
        peer.read_exact(&mut [0]).unwrap();
    }
}

/// The pool's threads, called `name`, sleep without waking up.
#[track_caller]
pub fn assert_sleeps(pool: &Pool, name: &str) {
    let sleeps = || -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let ours = tasks.filter(|task| {
            let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            comm.starts_with(name)
        });
        let ids = ours.map(|task| task.file_name().to_str().unwrap().parse().unwrap());
        ids.map(|id| thread_state(process::id(), id).unwrap().1).sum()
    };
    // The watchman has to see first that nothing moves any more.
    wait_until("the pool to come to rest", || {
        let before = sleeps();
        thread::sleep(Duration::from_millis(50));
        sleeps() == before
    });
    let before = sleeps();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(sleeps(), before, "{}", pool.metrics());
}

impl Watchdog {
    /// Watches over a test that has no pool.
    pub fn without_pool() -> Watchdog {
        let test = thread::current().name().unwrap_or("a test").to_string();
        let (done, told) = mpsc::channel();
        thread::spawn(move || {
            let over = told.recv_timeout(2 * PATIENCE + 2 * soak());
            if over == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs");
                process::abort();
            }
        });
        Watchdog { done: Some(done) }
    }
}

/// What tells a process that this test binary started what it is there for.
const ROLE: &str = "CABRANK_TEST_ROLE";

/// What this process is there for, if this test binary has started it.
pub fn process_role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// This test binary once more, to run one test in the given role.
pub fn again(test: &str, role: &str) -> process::Command {
    let mut command = process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role);
    command
}

/// Runs `code` in a process of its own: for tests that count what a process has, set its limits, or
/// give up its privileges. `test` is the name of the calling test.
#[track_caller]
pub fn in_own_process(test: &str, code: impl FnOnce()) {
    if process_role().as_deref() == Some(test) {
        let _watchdog = Watchdog::without_pool();
        return code();
    }
    let mut command = again(test, test);
    command.stdin(process::Stdio::null());
    command.stdout(process::Stdio::piped()).stderr(process::Stdio::piped());
    let output = output_in_time(command);
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    // With a name that is no test nothing would run, successfully.
    let ran = said.contains("1 passed");
    assert!(output.status.success() && ran, "{}\n{said}\n{complained}", output.status);
    // The first line begins with what the test harness says.
    for line in said.lines().filter(|line| line.contains("skipped: ")) {
        println!("{line}");
    }
}

/// As [`in_own_process`], in a process in which every thread blocks `signal`.
#[track_caller]
pub fn in_own_process_blocking(signal: i32, test: &str, code: impl FnOnce() + Send) {
    // A process starts with the mask of the thread that started it, and so do its threads.
    let run = || {
        cabrank::sys::signalfd::block(&[signal]).unwrap();
        in_own_process(test, code);
    };
    let ended = thread::scope(|scope| scope.spawn(run).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// One of the examples, which `cargo test` builds beside the tests.
#[track_caller]
pub fn example(name: &str) -> process::Command {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(example.exists(), "{} is missing: cargo build --examples", example.display());
    let mut command = process::Command::new(example);
    command.stdin(process::Stdio::null());
    command.stdout(process::Stdio::piped()).stderr(process::Stdio::piped());
    command
}

/// Runs a process and collects what it says; one that takes too long is killed.
#[track_caller]
pub fn output_in_time(mut command: process::Command) -> process::Output {
    let child = command.spawn().expect("this test binary can be started");
    let id = nix::unistd::Pid::from_raw(child.id() as i32);
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(child.wait_with_output()));
    match told.recv_timeout(3 * PATIENCE) {
        Ok(output) => output.expect("a process that can be waited for"),
        Err(_) => {
            let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL);
            panic!("{command:?} hangs");
        }
    }
}

/// The open descriptors of this process, in order.
pub fn descriptors() -> Vec<i32> {
    let listing = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut numbers: Vec<i32> = listing
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    // One of them was the listing's own.
    numbers.retain(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok());
    numbers.sort_unstable();
    numbers
}

/// Lowers the limit of open descriptors, so that `free` more can be opened; returns the old limit.
pub fn leave_descriptors(free: u64) -> (u64, u64) {
    let old = rlimit::getrlimit(rlimit::Resource::RLIMIT_NOFILE).unwrap();
    // Descriptors are given out from below, and the limit is on their number.
    let open = descriptors();
    let mut limit = 0;
    let mut left = free;
    while left > 0 || open.iter().any(|&number| number as u64 == limit) {
        if !open.iter().any(|&number| number as u64 == limit) {
            left -= 1;
        }
        limit += 1;
    }
    rlimit::setrlimit(rlimit::Resource::RLIMIT_NOFILE, limit, old.1).unwrap();
    old
}

/// The threads of this process.
pub fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// The memory of this process that is in use, in bytes.
pub fn resident_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes * 1024
}

/// The address space of this process, in bytes.
pub fn virtual_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split_whitespace().next().unwrap().parse().unwrap();
    pages * 4096
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// The nice value of the calling thread.
pub fn niceness() -> i32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // After the name, which may contain anything, comes the third field; it is the nineteenth.
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(16).unwrap().parse().unwrap()
}

/// The state letter of a thread of a process, and how often it has gone to sleep so far.
pub fn thread_state(process: u32, thread: i32) -> Option<(char, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line[name.len()..].split_whitespace().next().map(String::from)
    };
    let state = field("State:")?.chars().next()?;
    Some((state, field("voluntary_ctxt_switches:")?.parse().ok()?))
}

/// Whether a thread sleeps in a system call, and how often it has gone to sleep so far. Stands
/// still for as long as nothing wakes the thread.
pub fn sleep_of(process: u32, thread: i32) -> Option<u64> {
    // "running" for a thread that is, or is about to; the state letter alone changes too early.
    let call = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall")).ok()?;
    if call.starts_with("running") {
        return None;
    }
    match thread_state(process, thread)? {
        ('S', sleeps) => Some(sleeps),
        _ => None,
    }
}

/// Waits until a thread of this process sleeps in a system call; how often it has done so by then.
#[track_caller]
pub fn await_sleep(thread: i32) -> u64 {
    let mut sleeps = None;
    wait_until("a thread to sleep", || {
        sleeps = sleep_of(process::id(), thread);
        sleeps.is_some()
    });
    sleeps.unwrap()
}
