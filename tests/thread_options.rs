//! What is asked for a pool's threads is what they have, as the threads themselves read it back.
#![allow(unsafe_code)] // asking the C library about the calling thread

mod util;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use cabrank::{Builder, Error, Pinning, Pool, Scheduling, sys::sched};
use util::{PATIENCE, in_own_process, niceness, pool};

/// Builds a pool, and has each of its threads look at something before it takes part; by thread.
#[track_caller]
fn by_thread<T: Send + 'static>(
    builder: Builder,
    look: impl Fn() -> T + Send + Sync + 'static,
) -> Result<BTreeMap<usize, T>, Error> {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let builder = builder.on_thread_start(move |index| {
        tell.lock().unwrap().send((index, look())).unwrap();
    });
    let pool = builder.build()?;
    let count = pool.metrics().threads.len();
    Ok((0..count).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect())
}

#[test]
fn threads_are_pinned_to_the_cpus_of_a_list_in_its_order() {
    let mut cpus = sched::allowed_cpus();
    cpus.reverse();
    let threads = 2 * cpus.len() + 1;
    let builder = Pool::builder().threads(threads).pinning(Pinning::Cpus(cpus.clone()));
    let found = by_thread(builder, sched::allowed_cpus).unwrap();
    for (index, found) in found {
        assert_eq!(found, [cpus[index % cpus.len()]], "thread {index}");
    }
    assert_eq!(sched::allowed_cpus().len(), cpus.len(), "who builds the pool is not pinned");
}

/// As with any thread that is started: a pool built on a pinned thread stays where that one is, knows how
/// little it has, and does not promise more.
#[test]
fn a_pool_that_is_built_on_a_pinned_thread_stays_on_its_cpus() {
    let cpus = sched::allowed_cpus();
    let other = cpus[cpus.len() - 1];
    thread::spawn(move || {
        sched::pin_to_cpu(cpus[0]).unwrap();
        for pinning in [Pinning::None, Pinning::OnePerCpu] {
            let builder = Pool::builder().threads(3).pinning(pinning);
            for (index, found) in by_thread(builder, sched::allowed_cpus).unwrap() {
                assert_eq!(found, [cpus[0]], "thread {index}");
            }
        }
        if other != cpus[0] {
            let error = Pool::builder().threads(1).pinning(Pinning::Cpus(vec![other])).build();
            let Err(Error::NoSuchCpu { cpu, available }) = error else { panic!("{error:?}") };
            assert_eq!((cpu, available), (other, vec![cpus[0]]));
        }
    })
    .join()
    .unwrap();
}

#[test]
fn threads_have_their_nice_values() {
    let present = niceness();
    let nice = move |index: usize| (present + index as i32).min(19);
    let builder = Pool::builder().threads(4).scheduling_by(move |i| Scheduling::Nice(nice(i)));
    for (index, found) in by_thread(builder, niceness).unwrap() {
        assert_eq!(found, nice(index), "thread {index}");
    }
    let inherited = by_thread(Pool::builder().threads(2), niceness).unwrap();
    assert!(inherited.values().all(|found| *found == present));
    assert_eq!(niceness(), present, "who builds the pool has its own");
}

/// The calling thread's class and real-time priority.
fn class() -> (i32, i32) {
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel writes the parameters, which outlive the call; 0 is this thread.
    assert_eq!(unsafe { libc::sched_getparam(0, &mut parameters) }, 0);
    // SAFETY: the call takes no pointer.
    (unsafe { libc::sched_getscheduler(0) }, parameters.sched_priority)
}

#[test]
fn threads_have_their_real_time_priorities_where_that_is_permitted() {
    if thread::spawn(|| sched::set_fifo(1)).join().unwrap().is_err() {
        println!("skipped: this process may not have SCHED_FIFO");
        return;
    }
    let builder = Pool::builder().threads(3).scheduling_by(|index| match index {
        0 => Scheduling::Inherit,
        index => Scheduling::Fifo(index as i32),
    });
    let found = by_thread(builder, class).unwrap();
    assert_eq!(found[&0], class(), "that of who builds the pool");
    assert_eq!(found[&1], (libc::SCHED_FIFO, 1));
    assert_eq!(found[&2], (libc::SCHED_FIFO, 2));
}

/// The size of the calling thread's stack, as the C library knows it.
fn stack_size() -> usize {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the call takes no pointer.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the C library initialises the attributes, which outlive the call.
    assert_eq!(unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) }, 0);
    let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes have been initialised, and the results outlive the call.
    let read = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut size) };
    assert_eq!(read, 0);
    // SAFETY: the attributes have been initialised, and are not used any more.
    assert_eq!(unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) }, 0);
    size
}

/// The C library may add a guard and round up, but not a whole megabyte.
#[test]
fn threads_have_stacks_of_the_size_that_was_asked_for() {
    const MEGABYTE: usize = 1 << 20;
    // Alone and growing: the C library hands out stacks of threads that have ended, if they are no smaller.
    in_own_process("threads_have_stacks_of_the_size_that_was_asked_for", || {
        for asked in [MEGABYTE, 3 * MEGABYTE, 16 * MEGABYTE] {
            let builder = Pool::builder().threads(2).stack_size(asked);
            for (index, found) in by_thread(builder, stack_size).unwrap() {
                assert!((asked..asked + MEGABYTE).contains(&found), "thread {index}: {found}");
            }
        }
    });
}

#[test]
fn the_stop_hook_runs_on_the_same_thread_as_the_start_hook() {
    let seen: Arc<Mutex<Vec<(usize, thread::ThreadId)>>> = Arc::default();
    let note = |seen: &Arc<Mutex<Vec<(usize, thread::ThreadId)>>>| {
        let seen = Arc::clone(seen);
        move |index| seen.lock().unwrap().push((index, thread::current().id()))
    };
    let builder =
        Pool::builder().threads(3).on_thread_start(note(&seen)).on_thread_stop(note(&seen));
    let (pool, _watchdog) = pool(builder);
    pool.finish();
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_by_key(|(index, _)| *index);
    assert_eq!(seen.len(), 6);
    assert!(seen.chunks(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
}
