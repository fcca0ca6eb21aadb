//! What has gone wrong once, by what it was.

mod util;

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cabrank::sys::eventfd::EventFd;
use cabrank::{
    Context, Error, HandleId, Handler, Interest, Left, Next, Order, Pool, Promotion, Ready, Reason,
    Role, Turn, Watch, handler_fn, shared_fn,
};
use util::{Counter, PATIENCE, Probe, echo, in_own_process, ping, pool, read_some, wait_until};

/// A spinning leader answered the wake-up, found no event, and went to sleep on it.
#[test]
fn a_spinning_leader_does_not_swallow_a_wake_up() {
    for round in 0..200_u64 {
        let threads = 1 + round as usize % 2;
        let builder = Pool::builder().threads(threads).spin(Duration::from_micros(100));
        let (pool, _watchdog) = pool(builder);
        thread::sleep(Duration::from_micros(round % 150));
        pool.finish();
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(1).spin(Duration::from_micros(200)));
    let waker = pool.waker();
    for round in 0..300_u64 {
        let before = pool.metrics().total().waits;
        waker.wake();
        wait_until("a wait that ends", || pool.metrics().total().waits > before);
        thread::sleep(Duration::from_micros(round % 300));
    }
}

/// The time spent spinning was added to the time to wait.
#[test]
fn spinning_is_part_of_a_members_time() {
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1).spin(PATIENCE));
    let left = pool.join_timeout(Duration::from_millis(20)).unwrap();
    assert!(matches!(left, Left::TimedOut));
}

/// It waited for itself.
#[test]
fn finish_inside_a_handler_returns() {
    for within in [None, Some(PATIENCE)] {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let owner: Arc<Mutex<Option<Pool>>> = Arc::default();
        let held = Arc::clone(&owner);
        let (told, answers) = mpsc::channel();
        let (probe, mut peer) = Probe::pair(move |_: &mut UnixStream, _, _: &mut Context<'_>| {
            let pool = held.lock().unwrap().take().unwrap();
            match within {
                None => told.send(pool.finish().threads.is_empty()).unwrap(),
                Some(time) => {
                    let unfinished = pool.finish_within(time).unwrap_err();
                    let still = matches!(unfinished.error, Error::StillRunning { .. });
                    drop(unfinished);
                    told.send(still).unwrap();
                }
            }
            Next::Rearm(Interest::READABLE)
        });
        let closed = probe.closed.clone();
        pool.handles().register(probe, Interest::READABLE).unwrap();
        *owner.lock().unwrap() = Some(pool);
        peer.write_all(b"x").unwrap();
        assert!(answers.recv_timeout(PATIENCE).expect("an answer, not a deadlock"));
        closed.wait_for(1);
    }
}

/// The thread whose hook dropped the pool was to join itself.
#[test]
fn a_stop_hook_may_drop_the_pool() {
    let owner: Arc<Mutex<Option<Pool>>> = Arc::default();
    let (held, done) = (Arc::clone(&owner), Counter::new());
    let count = done.clone();
    let builder = Pool::builder().threads(1).on_thread_stop(move |_| {
        drop(held.lock().unwrap().take());
        count.add(1);
    });
    let (pool, _watchdog) = pool(builder);
    let remote = pool.remote();
    *owner.lock().unwrap() = Some(pool);
    remote.shutdown();
    done.wait_for(1);
}

/// A pool in a thread's local was dropped when what knows the thread's pools was gone already; or on the
/// very thread that it was to join.
#[test]
fn a_pool_in_a_threads_local_ends_with_the_thread() {
    thread_local! {
        static KEPT: RefCell<Option<Arc<Pool>>> = const { RefCell::new(None) };
    }
    in_own_process("a_pool_in_a_threads_local_ends_with_the_thread", || {
        thread::spawn(|| {
            KEPT.set(None);
            let pool = Pool::builder().threads(1).build().unwrap();
            pool.join_timeout(Duration::from_millis(1)).unwrap();
            KEPT.set(Some(Arc::new(pool)));
        })
        .join()
        .unwrap();

        let pool = Arc::new(Pool::builder().threads(1).build().unwrap());
        let (held, done) = (Arc::downgrade(&pool), Counter::new());
        let count = done.clone();
        let (probe, mut peer) = Probe::pair(move |_: &mut UnixStream, _, cx: &mut Context<'_>| {
            KEPT.set(held.upgrade());
            count.add(1);
            cx.shutdown();
            Next::Close
        });
        pool.handles().register(probe, Interest::READABLE).unwrap();
        let remote = pool.remote();
        peer.write_all(b"x").unwrap();
        done.wait_for(1);
        // From now on the pool's own thread holds it, until that ends.
        drop(pool);
        wait_until("the last handle is gone", || remote.handles().is_empty());
    });
}

/// The only sleeper's time was over between being chosen and being given its token.
#[test]
fn unordered_followers_may_give_up_while_they_are_chosen() {
    let builder = Pool::builder().threads(1).joiners(3).papers().order(Order::Unordered);
    let (pool, _watchdog) = pool(builder);
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let stop = Counter::new();
    thread::scope(|scope| {
        for number in 0..3 {
            let (pool, stop) = (&pool, stop.clone());
            scope.spawn(move || {
                let mut random = util::Random::new(number + 1);
                while stop.get() == 0 {
                    pool.join_timeout(Duration::from_micros(random.below(60))).unwrap();
                }
            });
        }
        for _ in 0..2_000 {
            ping(&mut peer);
        }
        stop.add(1);
    });
}

/// What a member had detected when it left was left to threads that sat, and did not see it.
#[test]
fn what_a_leaving_member_had_detected_is_served_by_those_who_sit() {
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(2).leaders(2).running(2));
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let Turn::Lead(leaves) = pool.enlist().unwrap().follow() else { panic!("no seat") };
    let Turn::Lead(stays) = pool.enlist().unwrap().follow() else { panic!("no second seat") };
    peer.write_all(b"p").unwrap();
    let Watch::Detected(detected) = leaves.wait() else { panic!("no event") };
    drop(detected);
    // There is nothing on the handle set any more; it is called all the same.
    let Watch::Nothing(follower) = stays.wait() else { panic!("an event out of nowhere") };
    let Turn::Process(processing) = follower.follow() else { panic!("the event is lost") };
    drop(processing.process());
    let mut back = [0];
    std::io::Read::read_exact(&mut peer, &mut back).unwrap();
}

/// The promoted thread sat down on its seat while an event was left over behind a blocked handler.
#[test]
fn the_promoted_thread_serves_what_is_left_over_first() {
    let builder = Pool::builder().threads(2).promotion(Promotion::Eager).running(2);
    let (pool, _watchdog) = pool(builder.events_per_wait(8));
    let (leave, told) = mpsc::channel::<()>();
    let told = Arc::new(Mutex::new(told));
    let (calls, first) = (Counter::new(), Counter::new());
    let mut peers = Vec::new();
    for _ in 0..2 {
        let (calls, first, told) = (calls.clone(), first.clone(), Arc::clone(&told));
        let (probe, peer) = Probe::pair(move |stream, _, _: &mut Context<'_>| {
            let _ = read_some(stream);
            if first.add(1) == 1 {
                let _ = told.lock().unwrap().recv();
            }
            calls.add(1);
            Next::Rearm(Interest::READABLE)
        });
        pool.handles().register(probe, Interest::READABLE).unwrap();
        peers.push(peer);
    }
    for peer in &mut peers {
        peer.write_all(b"x").unwrap();
    }
    // One blocks; the other is served all the same.
    calls.wait_for(1);
    leave.send(()).unwrap();
    calls.wait_for(2);
}

/// The counters of a member that had gone step by step were lost when it left.
#[test]
fn counters_outlive_a_member_that_was_enlisted() {
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(b"p").unwrap();
    let Turn::Lead(leader) = pool.enlist().unwrap().follow() else { panic!("no seat") };
    let Watch::Detected(detected) = leader.wait() else { panic!("no event") };
    drop(detected.promote().unwrap().process());
    assert_eq!(pool.metrics().total().events, 1);
}

/// A child forked in a handler went on as a thread of its parent's pool, and took the parent's events.
#[test]
fn a_child_forked_in_a_handler_does_not_go_on_in_the_pool() {
    in_own_process("a_child_forked_in_a_handler_does_not_go_on_in_the_pool", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (told, children) = mpsc::channel();
        let mut first = true;
        let (probe, mut peer) =
            Probe::pair(move |stream: &mut UnixStream, ready, cx: &mut Context<'_>| {
                if std::mem::take(&mut first) {
                    fork_and_return(&told);
                }
                echo(stream, ready, cx)
            });
        pool.handles().register(probe, Interest::READABLE).unwrap();
        for _ in 0..10 {
            ping(&mut peer);
        }
        assert_aborted(&children);
        for _ in 0..10 {
            ping(&mut peer);
        }
    });
}

/// The same for one that was forked in the hook of a handle.
#[test]
fn a_child_forked_in_a_hook_does_not_go_on_in_the_pool() {
    struct Forking(EventFd, mpsc::Sender<nix::unistd::Pid>);
    impl AsFd for Forking {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
    impl Handler for Forking {
        fn ready(&mut self, _ready: Ready, _cx: &mut Context<'_>) -> Next {
            Next::Close
        }

        fn closed(&mut self, _id: HandleId, _reason: Reason) {
            fork_and_return(&self.1);
        }
    }
    in_own_process("a_child_forked_in_a_hook_does_not_go_on_in_the_pool", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (told, children) = mpsc::channel();
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        pool.handles().register(Forking(ready(), told), Interest::READABLE).unwrap();
        assert_aborted(&children);
        for _ in 0..10 {
            ping(&mut peer);
        }
    });
}

/// The same for one that was forked in the report of an overrun, and in a stop hook.
#[test]
fn a_child_forked_in_a_pools_hook_does_not_go_on_in_the_pool() {
    in_own_process("a_child_forked_in_a_pools_hook_does_not_go_on_in_the_pool", || {
        let forks_once = || {
            let (told, children) = mpsc::channel();
            let told = Mutex::new(Some(told));
            let hook = move || {
                if let Some(told) = told.lock().unwrap().take() {
                    fork_and_return(&told);
                }
            };
            (hook, children)
        };
        let ((report, reported), (stop, stopped)) = (forks_once(), forks_once());
        let builder = Pool::builder().threads(2).budget(Duration::from_millis(1));
        let builder = builder.on_overrun(move |_| report()).on_thread_stop(move |_| stop());
        let (pool, _watchdog) = pool(builder);
        pool.post(|_cx| thread::sleep(Duration::from_millis(5))).unwrap();
        assert_aborted(&reported);
        pool.finish();
        assert_aborted(&stopped);
    });
}

/// And in the start hook of a thread.
#[test]
fn a_child_forked_in_a_start_hook_does_not_go_on_in_the_pool() {
    in_own_process("a_child_forked_in_a_start_hook_does_not_go_on_in_the_pool", || {
        let (told, children) = mpsc::channel();
        let builder = Pool::builder().threads(1).on_thread_start(move |_| fork_and_return(&told));
        let (pool, _watchdog) = pool(builder);
        assert_aborted(&children);
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        ping(&mut peer);
    });
}

#[track_caller]
fn assert_aborted(children: &mpsc::Receiver<nix::unistd::Pid>) {
    let child = children.recv_timeout(PATIENCE).unwrap();
    let ended = nix::sys::wait::waitpid(child, None).unwrap();
    let aborted = nix::sys::signal::Signal::SIGABRT;
    assert!(
        matches!(ended, nix::sys::wait::WaitStatus::Signaled(_, signal, _) if signal == aborted),
        "{ended:?}"
    );
}

#[allow(unsafe_code)] // forking is
fn fork_and_return(told: &mpsc::Sender<nix::unistd::Pid>) {
    // SAFETY: the child makes no call but those of the handler before it is aborted.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Parent { child } => told.send(child).unwrap(),
        nix::unistd::ForkResult::Child => {}
    }
}

/// An eventfd that is ready.
fn ready() -> EventFd {
    let eventfd = EventFd::new().unwrap();
    eventfd.notify().unwrap();
    eventfd
}

/// A thread that changed or registered a handle at the very end ran its hook after the end.
#[test]
fn no_hook_runs_after_the_end_whatever_others_do_meanwhile() {
    for round in 0..400_u64 {
        let pool = Pool::builder().threads(1).build().unwrap();
        let handles = pool.handles().clone();
        let (ended, late) = (Counter::new(), Counter::new());
        let probe = {
            let (ended, late) = (ended.clone(), late.clone());
            move || Closing {
                eventfd: EventFd::new().unwrap(),
                ended: ended.clone(),
                late: late.clone(),
            }
        };
        let id = handles.register(probe(), Interest::READABLE).unwrap();
        let (go, started) = mpsc::channel();
        let meddler = thread::spawn(move || {
            go.send(()).unwrap();
            match round % 2 {
                0 => while handles.resume(id).is_ok() {},
                _ => while handles.register(probe(), Interest::READABLE).is_ok() {},
            }
        });
        started.recv().unwrap();
        thread::sleep(Duration::from_micros(round % 50));
        drop(pool.finish());
        ended.add(1);
        meddler.join().unwrap();
        assert_eq!(late.get(), 0, "a hook after the end");
    }
}

/// Tells of its hook's being called after the end.
struct Closing {
    eventfd: EventFd,
    ended: Counter,
    late: Counter,
}

impl AsFd for Closing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

impl Handler for Closing {
    fn ready(&mut self, _ready: Ready, _cx: &mut Context<'_>) -> Next {
        Next::Rearm(Interest::READABLE)
    }

    fn closed(&mut self, _id: HandleId, _reason: Reason) {
        self.late.add(self.ended.get());
    }
}

/// The verdict of a shared handler overruled what was asked for while it ran.
#[test]
fn what_is_asked_of_a_shared_handle_outlives_its_verdict() {
    for ask in [true, false] {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let calls = Counter::new();
        let count = calls.clone();
        let handler = shared_fn(ready(), move |eventfd: &EventFd, _ready, cx| {
            if count.add(1) > 1 {
                return Next::Close;
            }
            let (handles, id) = (cx.handles().clone(), cx.id());
            if ask {
                thread::spawn(move || handles.resume(id)).join().unwrap().unwrap();
                return Next::Suspend;
            }
            eventfd.read().unwrap();
            // An eventfd at zero is writable.
            let writable = Interest::WRITABLE;
            thread::spawn(move || handles.set_interest(id, writable)).join().unwrap().unwrap();
            Next::Drained(Interest::READABLE)
        });
        pool.handles().register_shared(handler, Interest::READABLE).unwrap();
        calls.wait_for(2);
    }
}

/// A promoted thread sat down on its seat though an event was left over, and watched the wrong thing.
#[test]
fn a_promoted_thread_does_not_sit_while_an_event_waits() {
    let builder = Pool::builder().threads(0).joiners(3).promotion(Promotion::Eager);
    let builder = builder.leaders(1).events_per_wait(64).running(2);
    let (pool, _watchdog) = pool(builder.budget(Duration::from_millis(5)));
    let handled = Counter::new();
    for _ in 0..3 {
        let count = handled.clone();
        let handler = handler_fn(ready(), move |_, _, _| {
            count.add(1);
            Next::Close
        });
        pool.handles().register(handler, Interest::READABLE).unwrap();
    }
    thread::scope(|scope| {
        let late = pool.enlist().unwrap();
        let Turn::Lead(leader) = pool.enlist().unwrap().follow() else { panic!("no leader") };
        let third = scope.spawn(|| {
            let id = util::thread_id();
            (id, pool.join())
        });
        wait_until("a follower", || {
            let threads = pool.metrics().threads;
            threads.iter().filter(|thread| thread.role == Role::Follower).count() == 2
        });
        let Watch::Detected(detected) = leader.wait() else { panic!("nothing detected") };
        let first = detected.promote().unwrap();
        // Comes before the promoted thread is up, and then blocks, or after it: nobody must be blind.
        let second = scope.spawn(|| {
            let turn = late.follow();
            handled.wait_for(1);
            drop(turn);
        });
        handled.wait_for(1);
        drop(first);
        pool.shutdown();
        second.join().unwrap();
        third.join().unwrap().1.unwrap();
    });
}

/// A follower spun for the whole time it was given to spin, and then slept for the whole of its time-out.
#[test]
fn a_followers_spinning_is_part_of_its_time() {
    let builder = Pool::builder().threads(1).joiners(1).leaders(1).spin(PATIENCE);
    let (pool, _watchdog) = pool(builder);
    wait_until("a leader", || pool.metrics().threads[0].role == Role::Leader);
    let left = pool.join_timeout(Duration::from_millis(20)).unwrap();
    assert!(matches!(left, Left::TimedOut));
}

/// A thread that goes through its roles by itself was not known to be in a handler.
#[test]
fn a_handler_of_an_enlisted_thread_cannot_join() {
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
    let pool = Arc::new(pool);
    let (tell, told) = mpsc::channel();
    let inside = Arc::clone(&pool);
    let handler = handler_fn(ready(), move |_, _, _| {
        tell.send(inside.join()).unwrap();
        Next::Close
    });
    pool.handles().register(handler, Interest::READABLE).unwrap();
    let Turn::Lead(leader) = pool.enlist().unwrap().follow() else { panic!("no leader") };
    let Watch::Detected(detected) = leader.wait() else { panic!("nothing detected") };
    drop(detected.promote().unwrap().process());
    assert!(matches!(told.recv().unwrap(), Err(Error::AlreadyJoined)));
}

/// Joining in the destructor of a thread's local aborted the process.
#[test]
fn a_thread_may_join_on_its_way_out() {
    struct Late(Arc<Pool>, mpsc::Sender<Left>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.1.send(self.0.join_timeout(Duration::from_millis(1)).unwrap()).unwrap();
        }
    }
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let pool = Arc::new(pool);
    let (tell, told) = mpsc::channel();
    let inside = Arc::clone(&pool);
    let joiner = move || {
        LATE.set(Some(Late(Arc::clone(&inside), tell)));
        inside.join_timeout(Duration::from_millis(1)).unwrap();
    };
    thread::spawn(joiner).join().unwrap();
    assert!(matches!(told.recv().unwrap(), Left::TimedOut));
}
