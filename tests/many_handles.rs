//! Twenty thousand handles on one pool, registered by its own handlers while it serves others.

mod util;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use cabrank::sys::eventfd::EventFd;
use cabrank::{Context, Deactivation, Interest, Next, Pool, Ready, handler_fn};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use util::{Counter, Probe, echo, in_own_process, ping, pool, wait_until};

const HANDLES: usize = 20_000;
const REGISTRARS: usize = 4;
/// How many one call registers.
const STEP: usize = 50;

/// Room for as many descriptors as allowed; how many handles that is enough for.
fn room() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    // Besides there are the pool's own, standard input and output, and the like.
    let room = usize::try_from(hard).unwrap_or(usize::MAX).saturating_sub(500);
    let steps = room.min(HANDLES) / STEP;
    if steps * STEP < HANDLES {
        println!("skipped: {} handles only, the descriptor limit is {hard}", steps * STEP);
    }
    steps * STEP
}

fn check(test: &str, deactivation: Deactivation) {
    in_own_process(test, || {
        let count = room();
        let (pool, _watchdog) = pool(Pool::builder().threads(4).deactivation(deactivation));
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        let handles: Arc<Mutex<Vec<Arc<EventFd>>>> = Arc::default();
        let calls = Counter::new();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let pings = scope.spawn(|| {
                let mut pings = 0;
                while !done.load(Ordering::SeqCst) {
                    ping(&mut peer);
                    pings += 1;
                }
                pings
            });
            for _ in 0..REGISTRARS {
                register_registrar(&pool, count, &handles, &calls);
            }
            wait_until("all to be registered, and nobody else", || {
                handles.lock().unwrap().len() == count && pool.handles().len() == count + 1
            });
            done.store(true, Ordering::SeqCst);
            let pings: u64 = pings.join().unwrap();
            assert!(pings > 0, "served meanwhile");
        });
        // Each is called once, for each time it becomes ready.
        let handles = handles.lock().unwrap();
        for round in 1..=2 {
            for eventfd in handles.iter() {
                eventfd.notify().unwrap();
            }
            calls.wait_for(round * count as u64);
        }
        ping(&mut peer);
        assert_eq!(calls.get(), 2 * count as u64);
        let report = pool.finish();
        assert_eq!(report.metrics.total().panics, 0);
    });
}

/// A handler that is always ready, registers some handles each time, and closes when there are enough.
fn register_registrar(
    pool: &Pool,
    count: usize,
    handles: &Arc<Mutex<Vec<Arc<EventFd>>>>,
    calls: &Counter,
) {
    let always = EventFd::new().unwrap();
    always.notify().unwrap();
    let (handles, calls) = (Arc::clone(handles), calls.clone());
    let registrar = handler_fn(always, move |_, _: Ready, cx: &mut Context<'_>| {
        let mut handles = handles.lock().unwrap();
        if handles.len() == count {
            return Next::Close;
        }
        for _ in 0..STEP {
            let eventfd = Arc::new(EventFd::new().unwrap());
            handles.push(Arc::clone(&eventfd));
            let calls = calls.clone();
            let handler = handler_fn(eventfd, move |eventfd, _: Ready, _: &mut Context<'_>| {
                if eventfd.read().unwrap().is_some() {
                    calls.add(1);
                }
                Next::Rearm(Interest::READABLE)
            });
            cx.handles().register(handler, Interest::READABLE).unwrap();
        }
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(registrar, Interest::READABLE).unwrap();
}

#[test]
fn handlers_register_twenty_thousand_handles_by_one_shot() {
    let test = "handlers_register_twenty_thousand_handles_by_one_shot";
    check(test, Deactivation::OneShot);
}

#[test]
fn handlers_register_twenty_thousand_handles_by_edge() {
    let test = "handlers_register_twenty_thousand_handles_by_edge";
    check(test, Deactivation::Edge);
}
