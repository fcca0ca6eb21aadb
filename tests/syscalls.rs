//! I10, its second half: the system calls of a request, counted one by one with ptrace, under each policy.
// Making a child traceable before it runs cannot be done safely.
#![allow(unsafe_code)]

mod util;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cabrank::{Context, Deactivation, Interest, Next, Pool, Ready, handler_fn};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use util::PATIENCE;

const TEST: &str = "a_request_costs_the_counted_system_calls";
const REQUESTS: u32 = 400;

/// The only test of its process: it waits for every child there is.
#[test]
fn a_request_costs_the_counted_system_calls() {
    if let Some(policy) = util::process_role() {
        return serve(&policy);
    }
    // A wait, a read, a write; a re-arm where the kernel disarms; two to wake and sleep where a
    // follower is promoted for each event. With one thread that is exact. With several the margin is for
    // what tracing makes of them: each stop is so long that the next request is there, and noted by
    // another thread, before the handler has returned.
    for (policy, epoll_ctl, futex) in [
        ("one thread, one-shot", 1.0, 0.0),
        ("one thread, edge", 0.0, 0.0),
        ("default, one-shot", 1.0, 0.0),
        ("default, edge", 0.0, 0.0),
        ("papers, one-shot", 1.0, 2.0),
        ("papers, edge", 0.0, 2.0),
    ] {
        let counts = count(policy);
        let per_request =
            |name: &str| f64::from(counts.get(name).copied().unwrap_or(0)) / f64::from(REQUESTS);
        println!("{policy}: {counts:?} for {REQUESTS} requests");
        let several = !policy.starts_with("one");
        let margin = if several { 1.0 } else { 0.02 };
        for (name, expected) in [
            ("epoll_wait", 1.0),
            ("read", 1.0),
            ("write", 1.0),
            ("epoll_ctl", epoll_ctl),
            ("futex", futex),
            ("other", 0.0),
        ] {
            let found = per_request(name);
            assert!(found <= expected + margin, "{policy}: {found} {name} per request: {counts:?}");
        }
    }
}

/// The server: one connection, echoed, until the input ends.
fn serve(policy: &str) {
    let builder = match policy.split_once(", ") {
        Some(("one thread", _)) => Pool::builder().threads(1),
        Some(("papers", _)) => Pool::builder().threads(4).papers(),
        _ => Pool::builder().threads(4),
    };
    let edge = policy.ends_with("edge");
    let deactivation = if edge { Deactivation::Edge } else { Deactivation::OneShot };
    let pool = builder.deactivation(deactivation).build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("port {}", listener.local_addr().unwrap().port());
    let (stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    let echo = handler_fn(stream, |stream: &mut TcpStream, ready: Ready, _: &mut Context<'_>| {
        let mut buffer = [0; 64];
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => Next::Close,
            Ok(n) => {
                stream.write_all(&buffer[..n]).unwrap();
                // A short read: there is no more, unless the end has been announced.
                if ready.is_read_closed() {
                    Next::Rearm(Interest::READABLE)
                } else {
                    Next::Drained(Interest::READABLE)
                }
            }
        }
    });
    pool.handles().register(echo, Interest::READABLE).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

/// Runs the server under ptrace and counts what its threads ask of the kernel during `REQUESTS`.
fn count(policy: &str) -> BTreeMap<&'static str, u32> {
    let mut command = util::again(TEST, policy);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // SAFETY: between fork and exec only one system call is made.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(std::io::Error::from)) };
    let mut child = command.spawn().unwrap();
    let counting = AtomicBool::new(false);
    let pid = Pid::from_raw(child.id() as i32);
    thread::scope(|scope| {
        let (output, input) = (child.stdout.take(), child.stdin.take());
        let counting = &counting;
        scope.spawn(move || {
            let mut lines = BufReader::new(output.unwrap()).lines().map_while(Result::ok);
            let line = lines.find(|line| line.contains("port ")).expect("a port");
            let port: u16 = line.rsplit(' ').next().unwrap().parse().unwrap();
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            for request in 0..REQUESTS + 50 {
                counting.store(request >= 50, Ordering::SeqCst);
                stream.write_all(b"x").unwrap();
                stream.read_exact(&mut [0]).unwrap();
            }
            counting.store(false, Ordering::SeqCst);
            // The server ends with its input, and may say so.
            drop(input);
            lines.for_each(drop);
        });
        let counts = trace(pid, counting);
        // Its end has been seen by the tracer; what is left is to forget it.
        let _ = child.try_wait();
        counts
    })
}

fn trace(pid: Pid, counting: &AtomicBool) -> BTreeMap<&'static str, u32> {
    let mut counts = BTreeMap::new();
    waitpid(pid, None).unwrap();
    let options =
        Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(pid, options).unwrap();
    ptrace::syscall(pid, None).unwrap();
    let mut threads = std::collections::HashMap::<Pid, bool>::new();
    loop {
        let status = waitpid(None, Some(WaitPidFlag::__WALL)).unwrap();
        let (stopped, signal) = match status {
            WaitStatus::PtraceSyscall(thread) => {
                // Stops come in pairs: before and after the call.
                let inside = threads.entry(thread).or_default();
                *inside = !*inside;
                if *inside && counting.load(Ordering::SeqCst) {
                    *counts.entry(name(thread)).or_default() += 1;
                }
                (thread, None)
            }
            WaitStatus::Stopped(thread, nix::sys::signal::Signal::SIGSTOP)
            | WaitStatus::PtraceEvent(thread, ..) => (thread, None),
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, ..) if thread == pid => {
                return counts;
            }
            _ => continue,
        };
        // A thread may have ended between its stop and now.
        let _ = ptrace::syscall(stopped, signal);
    }
}

/// The call a stopped thread is about to make.
fn name(thread: Pid) -> &'static str {
    let line = std::fs::read_to_string(format!("/proc/{thread}/syscall")).unwrap_or_default();
    let number: i64 = line.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(-1);
    match number {
        libc::SYS_epoll_pwait2 | libc::SYS_epoll_pwait => "epoll_wait",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => "epoll_wait",
        libc::SYS_epoll_ctl => "epoll_ctl",
        libc::SYS_read | libc::SYS_recvfrom => "read",
        libc::SYS_write | libc::SYS_sendto => "write",
        libc::SYS_futex => "futex",
        _ => "other",
    }
}

/// The same from what the pool itself counts, without a tracer that slows it down.
#[test]
fn a_request_costs_the_counted_steps() {
    for edge in [false, true] {
        let rearms = if edge { 0 } else { 1 };
        for (builder, wakes) in [
            (Pool::builder().threads(1), 0),
            (Pool::builder().threads(4), 1),
            (Pool::builder().threads(4).papers(), 1),
        ] {
            let deactivation = if edge { Deactivation::Edge } else { Deactivation::OneShot };
            let (pool, _watchdog) = util::pool(builder.deactivation(deactivation));
            let (probe, mut peer) = util::Probe::pair(|stream, _, _: &mut Context<'_>| {
                let bytes = util::read_some(stream).unwrap_or_default();
                stream.write_all(&bytes).unwrap();
                // What was read was short of the buffer: there is no more.
                Next::Drained(Interest::READABLE)
            });
            pool.handles().register(probe, Interest::READABLE).unwrap();
            for _ in 0..REQUESTS {
                util::ping(&mut peer);
            }
            let total = pool.finish().metrics.total();
            let requests = u64::from(REQUESTS);
            // A request that comes before the slot is given back is noted, and makes its owner poll.
            assert!((requests..=requests + total.noted).contains(&total.events), "{total:?}");
            assert!(total.rearms <= rearms * requests + total.noted, "{total:?}");
            assert!(total.waits <= requests + total.noted + 8, "{total:?}");
            assert!(total.wakes <= wakes * (requests + total.noted), "{total:?}");
        }
    }
}
