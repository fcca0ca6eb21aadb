//! What one wait has fetched is there for all threads, and wakes them one at a time.
#![allow(unsafe_code)] // changing the scheduling class of a thread

mod util;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cabrank::sys::{eventfd::EventFd, sched};
use cabrank::{
    Context, Detected, Follower, HandleId, Interest, Next, Pool, Promotion, Ready, Role,
    ThreadMetrics, Turn, Watch, handler_fn,
};
use util::{Counter, PATIENCE, pool, wait_until};

const HANDLES: u64 = 8;

/// Registers an eventfd that is ready, and served once by `call`.
fn ready(pool: &Pool, mut call: impl FnMut() + Send + 'static) -> HandleId {
    let eventfd = EventFd::new().unwrap();
    eventfd.notify().unwrap();
    let handler = handler_fn(eventfd, move |_, _: Ready, _: &mut Context<'_>| {
        call();
        Next::Suspend
    });
    pool.handles().register(handler, Interest::READABLE).unwrap()
}

#[track_caller]
fn detect(follower: Follower<'_>) -> Detected<'_> {
    let Turn::Lead(leader) = follower.follow() else { panic!("not the leader") };
    match leader.wait() {
        Watch::Detected(detected) => detected,
        Watch::Nothing(_) => panic!("nothing detected"),
    }
}

/// Makes it a busy time, in which one wait fetches many events: waits that need not sleep.
fn heat_up(pool: &Pool) {
    let eventfd = EventFd::new().unwrap();
    eventfd.notify().unwrap();
    let always =
        handler_fn(eventfd, |_, _: Ready, _: &mut Context<'_>| Next::Rearm(Interest::READABLE));
    let id = pool.handles().register(always, Interest::READABLE).unwrap();
    let mut follower = pool.enlist().unwrap();
    for _ in 0..40 {
        follower = detect(follower).promote().unwrap().process();
    }
    drop(follower);
    pool.handles().remove(id).unwrap();
}

/// One wait fetches all events. The first handler to run returns when all others have: they are not to
/// wait behind it, but to be taken by others.
#[test]
fn leftover_events_do_not_wait_behind_a_blocked_handler() {
    // With short handlers it takes a watchman to see that one of them blocks; eager promotion needs none.
    let budget = Duration::from_millis(1);
    for (promotion, budget) in [(Promotion::Eager, 2 * PATIENCE), (Promotion::Adaptive, budget)] {
        let builder = Pool::builder().threads(0).joiners(4).running(2).promotion(promotion);
        let builder = builder.budget(budget);
        let (pool, _watchdog) = pool(builder);
        if promotion == Promotion::Adaptive {
            heat_up(&pool);
        }
        let before = pool.metrics().total();
        let (begun, done) = (Counter::new(), Counter::new());
        for _ in 0..HANDLES {
            let (begun, done) = (begun.clone(), done.clone());
            ready(&pool, move || {
                if begun.add(1) == 1 {
                    done.wait_for(HANDLES - 1);
                }
                done.add(1);
            });
        }
        let processing = detect(pool.enlist().unwrap()).promote().unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    begun.wait_for(1);
                    pool.join()
                });
            }
            drop(processing.process());
            pool.shutdown();
        });
        assert_eq!(done.get(), HANDLES, "{promotion:?}");
        let total = pool.metrics().total() - &before;
        assert_eq!(total.shared_taken, HANDLES - 1, "{promotion:?}: {}", pool.metrics());
    }
}

/// What a role that is dropped had in hand goes back to where it came from, in the order it came.
#[test]
fn a_dropped_role_gives_its_events_back_in_order() {
    let builder = Pool::builder().threads(0).joiners(1).promotion(Promotion::Eager);
    let (pool, _watchdog) = pool(builder);
    let served = Arc::new(Mutex::new(Vec::new()));
    for number in 0..HANDLES {
        let served = Arc::clone(&served);
        ready(&pool, move || served.lock().unwrap().push(number));
    }
    drop(detect(pool.enlist().unwrap()));
    drop(pool.enlist().unwrap().follow());
    let mut follower = pool.enlist().unwrap();
    for _ in 0..HANDLES {
        let Turn::Process(processing) = follower.follow() else { panic!("all have been detected") };
        follower = processing.process();
    }
    assert_eq!(*served.lock().unwrap(), (0..HANDLES).collect::<Vec<_>>());
}

/// From here on the calling thread has the CPU only when nobody else wants it: being woken does not take it
/// away from the one who wakes.
fn never_preempt() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel only reads the parameters, which outlive the call; 0 is this thread.
    assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) }, 0);
}

/// How many followers a thread wakes that has a burst of events for itself, because nobody else gets the
/// CPU.
fn wakes_of_a_burst() -> u64 {
    let cpu = sched::allowed_cpus()[0];
    let alone = || {
        let builder = Pool::builder().threads(0).joiners(7).running(7);
        let (pool, _watchdog) = pool(builder.promotion(Promotion::Eager));
        sched::pin_to_cpu(cpu).unwrap();
        let Turn::Lead(leader) = pool.enlist().unwrap().follow() else { panic!("alone here") };
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    never_preempt();
                    pool.join()
                });
            }
            let follows = |thread: &&ThreadMetrics| thread.role == Role::Follower;
            wait_until("six followers", || {
                pool.metrics().threads.iter().filter(follows).count() == 6
            });
            let calls = Counter::new();
            for _ in 0..16 {
                let (calls, remote) = (calls.clone(), pool.remote());
                ready(&pool, move || {
                    if calls.add(1) == 16 {
                        remote.shutdown();
                    }
                });
            }
            let Watch::Detected(detected) = leader.wait() else { panic!("all are ready") };
            let mut follower = detected.promote().unwrap().process();
            while let Turn::Process(processing) = follower.follow() {
                follower = processing.process();
            }
            pool.shutdown();
            pool.metrics().total().wakes
        })
    };
    thread::scope(|scope| scope.spawn(alone).join().unwrap())
}

/// I11: at most one follower is on its way, however much there is to do. One that is up may wake the next,
/// so only a round in which none gets up tells.
#[test]
fn a_burst_wakes_one_follower_at_a_time() {
    let rounds: Vec<u64> = (0..30).map(|_| wakes_of_a_burst()).collect();
    assert_eq!(rounds.iter().min(), Some(&1), "{rounds:?}");
}
