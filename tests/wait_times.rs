//! How long a wait lasts: to the nanosecond where the kernel can, rounded up where it cannot, and never
//! extended by signals.
#![allow(unsafe_code)] // system call filters, system calls by number, and signal handlers

mod util;

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::sys::epoll::{Epoll, Events};
use cabrank::{Interest, Left, Pool};
use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use util::{Probe, in_own_process, ping, pool};

/// How long a wait for nothing takes, with the given time-out.
fn wait(epoll: &Epoll, timeout: Duration) -> Duration {
    let mut events = Events::with_capacity(NonZeroUsize::MIN);
    let start = Instant::now();
    assert_eq!(epoll.wait(&mut events, Some(timeout)).unwrap(), 0);
    start.elapsed()
}

/// What the kernel says to `epoll_pwait2`, which is not to wait.
fn try_epoll_pwait2() -> io::Result<()> {
    let epoll = Epoll::new().unwrap();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let now = [0_i64, 0];
    let fd = epoll.as_fd().as_raw_fd();
    // SAFETY: room for one event, and a time of two numbers as the kernel has it; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            fd,
            &raw mut event,
            1,
            &raw const now,
            0_usize,
            0_usize,
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// From now on the kernel refuses `epoll_pwait2` to this thread, and to those it starts, with `errno`.
fn refuse_epoll_pwait2(errno: i32) {
    let statement = |code: u32, jump_if_false, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_if_false,
        k,
    };
    let mut program = [
        // The number of the system call is the first field of what the filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_epoll_pwait2 as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes no pointer; it is what allows a process without privileges to have filters.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the kernel copies the program, which outlives the call.
    let filtered =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(filtered, 0, "{}", io::Error::last_os_error());
}

#[test]
fn short_waits_are_not_rounded_up() {
    if let Err(error) = try_epoll_pwait2() {
        println!("skipped: this kernel has no epoll_pwait2: {error}");
        return;
    }
    let epoll = Epoll::new().unwrap();
    let shortest = (0..1_000).map(|_| wait(&epoll, Duration::from_micros(50))).min().unwrap();
    assert!(shortest < Duration::from_millis(1), "{shortest:?}");
}

/// A kernel without `epoll_pwait2`, or a sandbox that refuses it with `errno`.
fn check_without_epoll_pwait2(errno: i32) {
    refuse_epoll_pwait2(errno);
    assert_eq!(try_epoll_pwait2().unwrap_err().raw_os_error(), Some(errno));
    let epoll = Epoll::new().unwrap();
    for nanoseconds in [1, 50_000, 999_999, 1_000_000, 1_000_001, 2_500_000] {
        for _ in 0..5 {
            let timeout = Duration::from_nanos(nanoseconds);
            let waited = wait(&epoll, timeout);
            let whole = Duration::from_millis(nanoseconds.div_ceil(1_000_000));
            assert!(waited >= whole, "{waited:?} instead of {whole:?} for {timeout:?}");
        }
    }
    // A pool does everything it does elsewhere.
    let (pool, _watchdog) = pool(Pool::builder().threads(2).joiners(1));
    let (probe, mut peer) = Probe::pair(util::echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for _ in 0..50 {
        ping(&mut peer);
    }
    let start = Instant::now();
    let left = pool.join_timeout(Duration::from_micros(1_500)).unwrap();
    assert!(matches!(left, Left::TimedOut));
    assert!(start.elapsed() >= Duration::from_micros(1_500));
}

#[test]
fn waits_are_rounded_up_on_a_kernel_without_nanoseconds() {
    in_own_process("waits_are_rounded_up_on_a_kernel_without_nanoseconds", || {
        check_without_epoll_pwait2(libc::ENOSYS);
    });
}

#[test]
fn waits_are_rounded_up_in_a_sandbox_that_refuses_nanoseconds() {
    in_own_process("waits_are_rounded_up_in_a_sandbox_that_refuses_nanoseconds", || {
        check_without_epoll_pwait2(libc::EPERM);
    });
}

/// Runs `code` while the calling thread gets a signal every millisecond, for at most five seconds; how
/// long it took.
fn under_signals(code: impl FnOnce()) -> Duration {
    extern "C" fn ignore(_: i32) {}
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGUSR2, &action) }.unwrap();
    let (this, over) = (pthread_self(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while !over.load(Ordering::SeqCst) && start.elapsed() < Duration::from_secs(5) {
                pthread_kill(this, Signal::SIGUSR2).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let start = Instant::now();
        code();
        over.store(true, Ordering::SeqCst);
        start.elapsed()
    })
}

/// What remains after each of them, and not the whole time once more.
#[test]
fn signals_throughout_a_wait_do_not_extend_it() {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let bounds = TIMEOUT..10 * TIMEOUT;
    let epoll = Epoll::new().unwrap();
    let took = under_signals(|| _ = wait(&epoll, TIMEOUT));
    assert!(bounds.contains(&took), "{took:?}");
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
    let took = under_signals(|| {
        assert!(matches!(pool.join_timeout(TIMEOUT).unwrap(), Left::TimedOut));
    });
    assert!(bounds.contains(&took), "{took:?}");
}
