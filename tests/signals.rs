//! Signals as handles: real ones, each test in a process of its own whose threads all block them.

// Nobody has wrapped `sigqueue`.
#![allow(unsafe_code)]

mod util;

use std::ops::ControlFlow;
use std::process::{self, Command};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use cabrank::sys::signalfd::{self, SIGCHLD, SIGTERM, SIGUSR1, SIGUSR2};
use cabrank::{Context, Error, HandleSet, Pool, Removal, SignalInfo, Signals, Subscribers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use util::refusals::{check, still_serves};
use util::{PATIENCE, in_own_process, pool, wait_until};

/// Runs `code` in a process whose threads all block `signals`, as if `main` had begun with it.
#[track_caller]
fn blocking(signals: &[i32], test: &str, code: impl FnOnce() + Send) {
    // A process starts with the mask of the thread that started it.
    let run = || {
        signalfd::block(signals).unwrap();
        in_own_process(test, code);
    };
    let ended = thread::scope(|scope| scope.spawn(run).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn send(signal: Signal) {
    kill(Pid::this(), signal).unwrap();
}

fn queue(signal: i32, value: i32) {
    let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(value as usize) };
    // SAFETY: the call takes no pointer that it follows; the value is handed on as it is.
    let sent = unsafe { libc::sigqueue(Pid::this().as_raw(), signal, value) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

/// A callback that passes on what it is told.
fn listener(
    tell: Sender<SignalInfo>,
) -> impl FnMut(SignalInfo, &mut Context<'_>) -> ControlFlow<()> + Send + 'static {
    move |signal, _cx| {
        tell.send(signal).unwrap();
        ControlFlow::Continue(())
    }
}

fn listen(handles: &HandleSet, signals: &[i32]) -> (Subscribers, Receiver<SignalInfo>) {
    let (tell, told) = mpsc::channel();
    let signals = Signals::block(signals).unwrap();
    (handles.on_signals(signals, listener(tell)).unwrap(), told)
}

#[track_caller]
fn number(told: &Receiver<SignalInfo>) -> i32 {
    told.recv_timeout(PATIENCE).expect("a signal").number
}

/// The signals that the calling thread blocks, and those that wait for the process, as bits from 0.
fn mask(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

fn is_pending(signal: i32) -> bool {
    mask("ShdPnd:") & 1 << (signal - 1) != 0
}

#[test]
fn blocking_after_other_threads_have_started_is_refused_and_changes_nothing() {
    let test = "blocking_after_other_threads_have_started_is_refused_and_changes_nothing";
    blocking(&[SIGUSR1], test, || {
        let before = mask("SigBlk:");
        let error = Signals::block(&[SIGUSR1, SIGUSR2]).unwrap_err();
        // The harness's main thread, and the watchdog.
        let Error::SignalsTooLate { signal, thread, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*signal, SIGUSR2);
        assert!(std::path::Path::new(&format!("/proc/self/task/{thread}")).exists());
        let thread = thread.to_string();
        let said = ["too late", "signal 12", &thread, "first in main"];
        check(error, &said, None, std::io::ErrorKind::InvalidInput);
        assert_eq!(mask("SigBlk:"), before);
        // The one that all threads block can still be had.
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (_subscribers, told) = listen(pool.handles(), &[SIGUSR1]);
        send(Signal::SIGUSR1);
        assert_eq!(number(&told), SIGUSR1);
    });
}

/// They can be seen in /proc for a moment after they have been joined.
#[test]
fn threads_that_have_ended_do_not_count() {
    blocking(&[SIGUSR1], "threads_that_have_ended_do_not_count", || {
        for _ in 0..300 {
            let open = thread::spawn(|| signalfd::unblock(&[SIGUSR1]).unwrap());
            open.join().unwrap();
            Signals::block(&[SIGUSR1]).unwrap();
        }
    });
}

#[test]
fn numbers_that_nobody_can_wait_for_are_refused() {
    for signal in [0, -1, 4_000, libc::SIGKILL, libc::SIGSTOP] {
        let error = Signals::block(&[signal]).unwrap_err();
        assert!(matches!(error, Error::NotASignal { signal: named } if named == signal));
        check(error, &[&signal.to_string()], None, std::io::ErrorKind::InvalidInput);
    }
    assert!(matches!(Signals::block(&[]), Err(Error::Zero { .. })));
}

#[test]
fn each_subscriber_is_told_of_each_signal() {
    blocking(&[SIGUSR1, SIGUSR2], "each_subscriber_is_told_of_each_signal", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (subscribers, first) = listen(pool.handles(), &[SIGUSR1, SIGUSR2]);
        let (tell, second) = mpsc::channel();
        let elsewhere = subscribers.clone();
        thread::spawn(move || elsewhere.subscribe(listener(tell))).join().unwrap().unwrap();
        for signal in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGUSR1] {
            send(signal);
            assert_eq!((number(&first), number(&second)), (signal as i32, signal as i32));
        }
        // One that has had enough, and brings in another while it is told.
        let (tell, third) = mpsc::channel();
        let (told_once, once) = mpsc::channel();
        let inside = subscribers.clone();
        let callback = move |signal: SignalInfo, _cx: &mut Context<'_>| {
            told_once.send(signal.number).unwrap();
            inside.subscribe(listener(tell.clone())).unwrap();
            ControlFlow::Break(())
        };
        subscribers.subscribe(callback).unwrap();
        send(Signal::SIGUSR1);
        assert_eq!((number(&first), number(&second)), (SIGUSR1, SIGUSR1));
        assert_eq!(once.recv_timeout(PATIENCE), Ok(SIGUSR1));
        send(Signal::SIGUSR2);
        for told in [&first, &second, &third] {
            assert_eq!(number(told), SIGUSR2);
        }
        assert!(once.recv().is_err(), "dropped when it had said Break");
        assert!(third.try_recv().is_err() && first.try_recv().is_err());
    });
}

#[test]
fn equal_standard_signals_coalesce_and_real_time_signals_queue() {
    let real_time = signalfd::real_time(3).unwrap();
    let test = "equal_standard_signals_coalesce_and_real_time_signals_queue";
    blocking(&[SIGUSR1, real_time], test, || {
        // Nobody reads before we join.
        let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
        let (subscribers, told) = listen(pool.handles(), &[SIGUSR1, real_time]);
        let mut left = 1 + 40;
        let until_all = move |_: SignalInfo, cx: &mut Context<'_>| {
            left -= 1;
            if left == 0 {
                cx.shutdown();
            }
            ControlFlow::Continue(())
        };
        subscribers.subscribe(until_all).unwrap();
        for value in 0..40 {
            send(Signal::SIGUSR1);
            queue(real_time, value);
        }
        pool.join().unwrap();
        drop((pool, subscribers));
        let told: Vec<SignalInfo> = told.iter().collect();
        let (standard, queued): (Vec<&SignalInfo>, Vec<&SignalInfo>) =
            told.iter().partition(|signal| signal.number == SIGUSR1);
        assert_eq!(standard.len(), 1, "one while it waited to be read");
        let values: Vec<_> = queued.iter().map(|signal| signal.value).collect();
        assert_eq!(values, (0..40).map(Some).collect::<Vec<_>>(), "all, in order");
    });
}

#[test]
fn a_signal_names_its_sender() {
    blocking(&[SIGUSR1], "a_signal_names_its_sender", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (_subscribers, told) = listen(pool.handles(), &[SIGUSR1]);
        send(Signal::SIGUSR1);
        let own = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!((own.pid, own.value, own.status), (Some(process::id()), None, None));
        assert_eq!(own.uid, Some(nix::unistd::getuid().as_raw()));
        assert_eq!(own.code, libc::SI_USER);
        let script = format!("kill -USR1 {}", process::id());
        let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        assert_eq!(told.recv_timeout(PATIENCE).unwrap().pid, Some(child.id()));
        assert!(child.wait().unwrap().success());
    });
}

#[test]
fn the_end_of_a_child_is_told() {
    blocking(&[SIGCHLD], "the_end_of_a_child_is_told", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (_subscribers, told) = listen(pool.handles(), &[SIGCHLD]);
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let ended = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!((ended.number, ended.pid), (SIGCHLD, Some(child.id())));
        assert_eq!((ended.code, ended.status), (libc::CLD_EXITED, Some(7)));
        assert_eq!(child.wait().unwrap().code(), Some(7));
    });
}

#[test]
fn a_signal_shuts_the_pool_down() {
    blocking(&[SIGTERM], "a_signal_shuts_the_pool_down", || {
        let signals = Signals::block(&[SIGTERM]).unwrap();
        let (pool, _watchdog) = pool(Pool::builder().threads(2).joiners(1));
        let stop = |signal: SignalInfo, cx: &mut Context<'_>| {
            assert_eq!(signal.number, SIGTERM);
            cx.shutdown();
            ControlFlow::Break(())
        };
        pool.handles().on_signals(signals, stop).unwrap();
        let sending = thread::spawn(|| send(Signal::SIGTERM));
        assert!(matches!(pool.join(), Ok(()) | Err(Error::ShutDown)));
        sending.join().unwrap();
        assert_eq!(pool.finish().metrics.total().panics, 0);
    });
}

#[test]
fn a_removed_handle_leaves_the_signals_blocked_and_pending() {
    let test = "a_removed_handle_leaves_the_signals_blocked_and_pending";
    blocking(&[SIGUSR1], test, || {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (subscribers, told) = listen(pool.handles(), &[SIGUSR1]);
        send(Signal::SIGUSR1);
        assert_eq!(number(&told), SIGUSR1);
        assert_eq!(pool.handles().remove(subscribers.id()).unwrap(), Removal::Done);
        assert!(told.recv().is_err(), "the callback is gone");
        let too_late = subscribers.subscribe(|_, _| unreachable!());
        assert!(matches!(too_late, Err(Error::UnknownHandle { id }) if id == subscribers.id()));
        // By default this would end the process.
        send(Signal::SIGUSR1);
        assert!(is_pending(SIGUSR1));
        let (_subscribers, told) = listen(pool.handles(), &[SIGUSR1]);
        assert_eq!(number(&told), SIGUSR1);
        assert!(!is_pending(SIGUSR1));
    });
}

#[test]
fn a_callback_that_removes_its_handle_leaves_the_rest_to_others() {
    let real_time = signalfd::real_time(0).unwrap();
    let test = "a_callback_that_removes_its_handle_leaves_the_rest_to_others";
    blocking(&[real_time], test, || {
        let signals = Signals::block(&[real_time]).unwrap();
        (0..3).for_each(|value| queue(real_time, value));
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (tell, told) = mpsc::channel();
        let leave = move |signal: SignalInfo, cx: &mut Context<'_>| {
            cx.handles().remove(cx.id()).unwrap();
            tell.send(signal.value).unwrap();
            ControlFlow::Continue(())
        };
        pool.handles().on_signals(signals, leave).unwrap();
        assert_eq!(told.iter().collect::<Vec<_>>(), [Some(0)]);
        let (_subscribers, told) = listen(pool.handles(), &[real_time]);
        let rest: Vec<_> = told.iter().take(2).map(|signal| signal.value).collect();
        assert_eq!(rest, [Some(1), Some(2)]);
    });
}

#[test]
fn a_callback_that_panics_costs_itself_only() {
    blocking(&[SIGUSR1], "a_callback_that_panics_costs_itself_only", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let signals = Signals::block(&[SIGUSR1]).unwrap();
        let subscribers = pool.handles().on_signals(signals, |_, _| panic!("on a signal")).unwrap();
        let (tell, told) = mpsc::channel();
        subscribers.subscribe(listener(tell)).unwrap();
        for _ in 0..3 {
            send(Signal::SIGUSR1);
            assert_eq!(number(&told), SIGUSR1);
        }
        assert!(pool.handles().contains(subscribers.id()));
        wait_until("the panic is counted", || pool.metrics().total().panics == 1);
        still_serves(&pool);
    });
}

#[test]
fn signals_and_subscribers_cross_threads_and_print() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<Signals>();
    shared::<Subscribers>();
    shared::<SignalInfo>();
}

#[test]
fn a_refused_registration_gives_the_signals_back() {
    blocking(&[SIGUSR1], "a_refused_registration_gives_the_signals_back", || {
        let signals = Signals::block(&[SIGUSR1]).unwrap();
        let ended = Pool::builder().threads(1).build().unwrap();
        let handles = ended.handles().clone();
        ended.finish();
        let rejected = handles.on_signals(signals, |_, _| unreachable!()).unwrap_err();
        assert!(matches!(rejected.error, Error::ShutDown));
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (tell, told) = mpsc::channel();
        pool.handles().on_signals(rejected.handler, listener(tell)).unwrap();
        send(Signal::SIGUSR1);
        assert_eq!(number(&told), SIGUSR1);
    });
}
