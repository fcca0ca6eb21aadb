//! What has gone wrong once with deadlines, mailboxes, growth and socket files, by what it was.

mod util;

use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::net::ListenOptions;
use cabrank::sys::eventfd::EventFd;
use cabrank::{
    Capacity, Context, Error, Follower, Interest, Next, Pool, Promotion, Registration, Remote,
    Role, Turn, Watch, handler_fn,
};
use util::{Counter, PATIENCE, pool, wait_until};

const SOON: Duration = Duration::from_millis(5);

/// One step of a thread that goes through its roles by itself.
fn step(follower: Follower<'_>) -> Follower<'_> {
    match follower.follow() {
        Turn::Lead(leader) => match leader.wait() {
            Watch::Detected(detected) => match detected.promote() {
                Ok(processing) => processing.process(),
                Err(follower) => follower,
            },
            Watch::Nothing(follower) => follower,
        },
        Turn::Process(processing) => processing.process(),
        Turn::Leave(why) => panic!("left: {why}"),
    }
}

/// A handle that was queued once more while its event was on its way left its place in the queue to the next
/// tenant of its slot, whose deadline never came.
#[test]
fn a_tenant_leaves_no_deadline_behind() {
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(2));
    let pool = Arc::new(pool);
    let (inside, ready) = (Arc::clone(&pool), EventFd::new().unwrap());
    ready.notify().unwrap();
    let handler = handler_fn(ready, move |eventfd, ready, cx| {
        if ready.is_timeout() {
            return Next::Close;
        }
        eventfd.read().unwrap();
        // The deadline passes. Another thread finds it so, and leaves it to others.
        let Turn::Lead(leader) = inside.enlist().unwrap().follow() else { panic!("no seat") };
        let Watch::Detected(detected) = leader.wait() else { panic!("no alarm") };
        drop(detected);
        // From when the call began: before the time it was queued under.
        cx.set_deadline(Duration::from_nanos(1));
        Next::Rearm(Interest::READABLE)
    });
    let registration = Registration::new(Interest::READABLE).deadline(2 * SOON);
    let id = pool.handles().register(handler, registration).unwrap();
    let mut follower = pool.enlist().unwrap();
    while pool.handles().contains(id) {
        follower = step(follower);
    }
    let fired = Counter::new();
    let count = fired.clone();
    pool.handles().after(SOON, move |_cx| _ = count.add(1)).unwrap();
    while fired.get() == 0 {
        follower = step(follower);
    }
    drop(follower);
}

/// A deadline delivered what a suspended mailbox held back, and resumed it.
#[test]
fn a_deadline_does_not_open_a_suspended_mailbox() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let received = Counter::new();
    let count = received.clone();
    let mailbox = pool
        .handles()
        .mailbox(Capacity::UNBOUNDED, move |(), _cx| {
            count.add(1);
            ControlFlow::Continue(())
        })
        .unwrap();
    pool.handles().suspend(mailbox.id()).unwrap();
    mailbox.send(()).unwrap();
    pool.handles().set_deadline(mailbox.id(), Duration::ZERO).unwrap();
    let after = Counter::new();
    let count = after.clone();
    pool.handles().after(SOON, move |_cx| _ = count.add(1)).unwrap();
    after.wait_for(1);
    mailbox.send(()).unwrap();
    assert_eq!((received.get(), mailbox.len()), (0, 2));
    pool.handles().resume(mailbox.id()).unwrap();
    received.wait_for(2);
}

/// Several that were idle for long saw that there was one too many, and all of them left.
#[test]
fn a_pool_never_shrinks_below_its_minimum() {
    for round in 0..10 {
        let (started, stopped) = (Counter::new(), Counter::new());
        let (up, down) = (started.clone(), stopped.clone());
        let least = 1 + round % 3;
        let builder = Pool::builder().threads(least).max_threads(10);
        let builder = builder.growth_interval(Duration::ZERO).keep_alive(SOON);
        let builder = builder.on_thread_start(move |_| _ = up.add(1));
        let (pool, _watchdog) = pool(builder.on_thread_stop(move |_| _ = down.add(1)));
        let meeting = Arc::new(Barrier::new(10));
        for _ in 0..9 {
            let meeting = Arc::clone(&meeting);
            pool.post(move |_cx| _ = meeting.wait()).unwrap();
        }
        meeting.wait();
        wait_until("the surplus to leave", || started.get() - stopped.get() <= least as u64);
        // As long again, for one that leaves too many.
        thread::sleep(2 * SOON);
        assert_eq!(started.get() - stopped.get(), least as u64, "of {least} that are to stay");
        let done = Counter::new();
        let count = done.clone();
        pool.post(move |_cx| _ = count.add(1)).unwrap();
        done.wait_for(1);
    }
}

/// Has a closure wait inside a handler; returns when it is inside, with what lets it go on.
fn block_one(pool: &Pool) -> mpsc::Sender<()> {
    let (go, wait) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let block = move |_: &mut Context<'_>| {
        tell.send(()).unwrap();
        let _ = wait.recv_timeout(PATIENCE);
    };
    pool.post(block).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    go
}

#[track_caller]
fn still_serves(pool: &Pool) {
    let done = Counter::new();
    let count = done.clone();
    pool.post(move |_cx| _ = count.add(1)).unwrap();
    done.wait_for(1);
}

/// The last idle thread was the application's, and left; nobody came in its place.
#[test]
fn a_joiner_that_leaves_last_is_replaced() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1).max_threads(4).joiners(1));
    wait_until("a leader", || pool.metrics().threads[0].role == Role::Leader);
    let Turn::Lead(leader) = pool.enlist().unwrap().follow() else { panic!("no seat") };
    let go = block_one(&pool);
    drop(leader);
    still_serves(&pool);
    drop(go);
}

/// A thread could not be started while the last to leave was in its stop hook, and nobody tried again.
#[test]
fn a_thread_in_its_stop_hook_is_not_in_the_way() {
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let left = std::sync::Mutex::new(left);
    let builder = Pool::builder().threads(1).max_threads(2).keep_alive(SOON);
    let builder = builder.on_thread_stop(move |_| {
        let _ = enter.send(());
        let _ = left.lock().unwrap().recv_timeout(PATIENCE);
    });
    let (pool, _watchdog) = pool(builder);
    let go = block_one(&pool);
    still_serves(&pool);
    drop(go);
    entered.recv_timeout(PATIENCE).unwrap();
    let go = block_one(&pool);
    still_serves(&pool);
    drop((go, leave));
}

/// The time for the end did not count for stop hooks, which were waited for as long as they took.
#[test]
fn stop_hooks_are_waited_for_no_longer_than_the_deadline() {
    let (leave, left) = mpsc::channel::<()>();
    let left = std::sync::Mutex::new(left);
    let builder = Pool::builder().threads(1).on_thread_stop(move |_| {
        let _ = left.lock().unwrap().recv_timeout(PATIENCE);
    });
    let (pool, _watchdog) = pool(builder);
    let unfinished = pool.finish_within(SOON).unwrap_err();
    assert!(matches!(unfinished.error, Error::StillRunning { threads: 1, .. }), "{unfinished}");
    drop(leave);
    assert_eq!(unfinished.pool.finish().threads.len(), 1);
}

/// The report of a handler that overran its budget was made by a thread that held a seat.
#[test]
fn reports_are_made_without_a_role() {
    let remote: Arc<OnceLock<Remote>> = Arc::default();
    let (look, (tell, told)) = (Arc::clone(&remote), mpsc::channel());
    let builder = Pool::builder().threads(3).leaders(1).running(1).promotion(Promotion::Eager);
    let builder = builder.budget(SOON).on_overrun(move |_| {
        let threads = look.get().unwrap().metrics().threads;
        let current = thread::current();
        let own = threads.iter().find(|thread| Some(&*thread.name) == current.name());
        let _ = tell.send(own.unwrap().role);
    });
    let (pool, _watchdog) = pool(builder);
    remote.set(pool.remote()).unwrap();
    let go = block_one(&pool);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Role::Follower);
    drop(go);
}

fn socket_path(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("cabrank-{name}-{}", std::process::id()))
}

/// Of two that found a path stale, the second took it from the first.
#[test]
fn of_two_that_replace_a_stale_path_one_is_refused() {
    let path = socket_path("stale");
    for _ in 0..300 {
        let _ = std::fs::remove_file(&path);
        drop(UnixListener::bind(&path).unwrap());
        let start = Barrier::new(2);
        let listen = || {
            start.wait();
            ListenOptions::new().replace_stale().unix(&path)
        };
        let (one, other) = thread::scope(|scope| {
            let (one, other) = (scope.spawn(listen), scope.spawn(listen));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert!(one.is_ok() != other.is_ok(), "{one:?} and {other:?}");
    }
    let _ = std::fs::remove_file(&path);
}

/// A listener that was dropped deleted the file of its successor.
#[test]
fn a_listener_does_not_delete_its_successors_file() {
    let path = socket_path("successor");
    for _ in 0..500 {
        let _ = std::fs::remove_file(&path);
        let old = ListenOptions::new().unix(&path).unwrap();
        let new = thread::scope(|scope| {
            let successor = scope.spawn(|| {
                loop {
                    if let Ok(new) = ListenOptions::new().replace_stale().unix(&path) {
                        return new;
                    }
                }
            });
            scope.spawn(move || drop(old));
            successor.join().unwrap()
        });
        assert!(UnixStream::connect(&path).is_ok(), "nobody can reach the successor");
        drop(new);
    }
}

/// It was counted from the wait, which may be long ago for a thread that goes step by step.
#[test]
fn a_deadline_counts_from_the_call_also_step_by_step() {
    const PAUSE: Duration = Duration::from_millis(60);
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
    let (tell, told) = mpsc::channel();
    let eventfd = EventFd::new().unwrap();
    eventfd.notify().unwrap();
    let handler = handler_fn(eventfd, move |eventfd: &mut EventFd, ready, cx: &mut Context<'_>| {
        let _ = eventfd.read();
        tell.send(Instant::now()).unwrap();
        if ready.is_timeout() {
            return Next::Close;
        }
        cx.set_deadline(PAUSE);
        Next::Drained(Interest::READABLE)
    });
    pool.handles().register(handler, Interest::READABLE).unwrap();
    let Turn::Lead(leader) = pool.enlist().unwrap().follow() else { panic!("no seat") };
    let Watch::Detected(detected) = leader.wait() else { panic!("no event") };
    thread::sleep(2 * PAUSE);
    let processing = detected.promote().unwrap();
    thread::sleep(2 * PAUSE);
    let mut follower = processing.process();
    while !pool.handles().is_empty() {
        follower = step(follower);
    }
    let (call, timeout) = (told.recv().unwrap(), told.recv().unwrap());
    let after = timeout - call;
    // Less what passes between the two looks at the clock.
    assert!(after >= PAUSE - Duration::from_millis(10), "called for its deadline after {after:?}");
}
