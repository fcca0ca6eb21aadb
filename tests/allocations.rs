//! I10, its first half: no allocation on the event path after warm-up, counted by the allocator itself.
// An allocator cannot be written safely.
#![allow(unsafe_code)]

mod util;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use cabrank::{Context, Deactivation, Interest, Next, Pool, Ready};
use util::{Probe, ping, pool};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The only test of its process, so that nobody else allocates.
#[test]
fn no_allocation_per_event_after_warm_up() {
    let policies = [
        ("default", Pool::builder()),
        ("papers", Pool::builder().papers()),
        ("four events, two leaders", Pool::builder().events_per_wait(4).leaders(2)),
    ];
    for (name, builder) in policies {
        for deactivation in [Deactivation::OneShot, Deactivation::Edge] {
            let builder = builder.clone().threads(4).deactivation(deactivation);
            // The watchdog's looks at the counters allocate, so there is none; a hang is a time-out of
            // the peers' reads.
            let pool = builder.build().unwrap();
            let mut peers = Vec::new();
            for _ in 0..8 {
                let (probe, peer) = Probe::pair(answer);
                pool.handles().register(probe, Interest::READABLE).unwrap();
                peers.push(peer);
            }
            let mut round = |rounds| {
                for _ in 0..rounds {
                    for peer in &mut peers {
                        peer.write_all(b"p").unwrap();
                    }
                    for peer in &mut peers {
                        let mut back = [0];
                        std::io::Read::read_exact(peer, &mut back).unwrap();
                    }
                }
            };
            round(200);
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            round(500);
            let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert_eq!(allocated, 0, "{name} {deactivation:?}: in 4,000 events");
        }
    }
    // The counter counts.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(1)));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before);
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let (probe, mut peer) = Probe::pair(answer);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    ping(&mut peer);
}

/// Echoes one byte without allocating.
fn answer(stream: &mut std::os::unix::net::UnixStream, _: Ready, _: &mut Context<'_>) -> Next {
    let mut byte = [0];
    match std::io::Read::read(stream, &mut byte) {
        Ok(0) => Next::Close,
        Ok(_) => {
            stream.write_all(&byte).unwrap();
            Next::Rearm(Interest::READABLE)
        }
        Err(_) => Next::Drained(Interest::READABLE),
    }
}
