//! The threads of a pool: starting them, at first and when there is need, and hearing of their end.

use std::cell::RefCell;
use std::io;
use std::num::NonZeroUsize;
// The model checkers have no use for the pool, and their `Arc` is no receiver.
use std::sync::{Arc as Plain, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::builder::{Builder, Hook, Overrun, Plan, Setup};
use crate::error::{Error, Result};
use crate::handle_set::HandleSet;
use crate::handler::Control;
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::pool::{Ending, Follower};
use crate::rank::{self, Rank};
use crate::roles::{self, Left, OverrunHook, Recruiter, Shared};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Condvar, Mutex, now};
use crate::sys::epoll::Events;
use crate::token::{HandleId, Token};
use crate::upcall::{self, OnPanic};
use crate::worker::Worker;

/// What the pool's threads hold on to.
pub(crate) struct Crew {
    pub(crate) shared: Shared<HandleSet>,
    events: NonZeroUsize,
    built: u64,
    /// The index of the next application thread that joins.
    next_index: AtomicUsize,
    terms: Terms,
    roster: Arc<Roster>,
}

/// How threads are started.
struct Terms {
    name: String,
    stack_size: Option<usize>,
    setups: Vec<Setup>,
    on_start: Option<Hook>,
    on_stop: Option<Hook>,
}

/// The places of the pool's own threads, by index. Outlives the crew while a thread is in its stop hook.
struct Roster {
    places: Mutex<Vec<Place>>,
    /// A thread has ended.
    ended: Condvar,
}

struct Place {
    /// Stays when its thread goes, and goes on counting with the next.
    worker: Arc<Worker>,
    /// Joined at the end, or dropped when the next comes: it has ended then.
    thread: Option<JoinHandle<()>>,
    is_taken: bool,
    /// Somebody has been here.
    is_known: bool,
    /// How the last thread that was here ended.
    ending: Option<Ending>,
}

impl Place {
    fn new(terms: &Terms, index: usize, priority: i32) -> Place {
        let worker = Worker::new(index, format!("{}-{index}", terms.name), priority);
        Place {
            worker: Arc::new(worker),
            thread: None,
            is_taken: false,
            is_known: false,
            ending: None,
        }
    }
}

impl Crew {
    /// Makes the handle set and starts the least number of threads.
    pub(crate) fn start(builder: &Builder, policy: Policy, plan: Plan) -> Result<Plain<Crew>> {
        let handles = HandleSet::new(builder.deactivation, builder.on_panic, builder.max_handles)?;
        let on_overrun = builder.on_overrun.clone().map(|hook| -> OverrunHook {
            let set = handles.inner.id;
            Box::new(move |overrun| hook(&in_public(overrun, set)))
        });
        let (threads, least) = (plan.threads.len(), plan.least);
        let terms = Terms {
            name: builder.name.clone(),
            stack_size: builder.stack_size,
            setups: plan.threads,
            on_start: builder.on_start.clone(),
            on_stop: builder.on_stop.clone(),
        };
        let places = terms.setups.iter().enumerate();
        let places = places
            .map(|(index, setup)| Place::new(&terms, index, setup.scheduling.priority()))
            .collect();
        let crew = Plain::new(Crew {
            shared: Shared { demux: handles, rank: Rank::new(policy), on_overrun },
            events: NonZeroUsize::new(policy.events).unwrap_or(NonZeroUsize::MIN),
            built: now(),
            next_index: AtomicUsize::new(threads),
            terms,
            roster: Arc::new(Roster { places: Mutex::new(places), ended: Condvar::new() }),
        });
        let (report, reports) = mpsc::channel();
        let started = (0..least).try_for_each(|index| {
            let mut places = crew.roster.places.lock();
            crew.start_thread(&mut places[index], index, Some(report.clone()))
                .map_err(|source| Error::Spawn { thread: index, source })
        });
        drop(report);
        let started = started.and_then(|()| reports.into_iter().collect::<Result<()>>());
        if let Err(error) = started {
            crew.shut_down();
            crew.await_threads(None);
            crew.join_threads();
            return Err(error);
        }
        Ok(crew)
    }

    /// A thread comes in, to go through the roles.
    pub(crate) fn enlist(
        self: &Plain<Crew>,
        worker: Arc<Worker>,
        deadline: Option<u64>,
    ) -> Result<Follower<'_>> {
        let events = Events::with_capacity(self.events);
        roles::Follower::enlist(&self.shared, worker, events, deadline, self)
    }

    /// The record of an application thread.
    pub(crate) fn joiner(&self) -> Arc<Worker> {
        let index = self.next_index();
        let name = thread::current().name().map_or_else(|| format!("joined-{index}"), String::from);
        Arc::new(Worker::joined(index, name))
    }

    fn next_index(&self) -> usize {
        // Relaxed: only the uniqueness of the number matters.
        self.next_index.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.shared.demux.inner.process.is_current()
    }

    pub(crate) fn shut_down(&self) {
        if self.is_ours() {
            Control::shut_down(&self.shared);
        }
    }

    /// Waits until the last thread has left and the handles are gone, or until `deadline`; whether they are.
    pub(crate) fn await_end(&self, deadline: Option<u64>) -> bool {
        self.shared.clear_if_deserted();
        if !self.shared.rank.await_cleared(deadline) {
            return false;
        }
        // A handle may be in the hands of a thread that is changing or registering it. Inside a handler or
        // a hook that thread may be this one.
        upcall::is_inside() || self.shared.demux.await_empty(deadline)
    }

    /// Waits until the pool's own threads are done with their stop hooks, or until `deadline`; how many are
    /// not. The calling thread does not wait for itself: a stop hook may end the pool.
    pub(crate) fn await_threads(&self, deadline: Option<u64>) -> usize {
        let own = thread::current().id();
        let is_other = |place: &Place| {
            let id = place.thread.as_ref().map(|thread| thread.thread().id());
            place.is_taken && id != Some(own)
        };
        let mut places = self.roster.places.lock();
        loop {
            let left = places.iter().filter(|place| is_other(place)).count();
            let remaining = deadline.map(|deadline| deadline.saturating_sub(now()));
            places = match remaining {
                _ if left == 0 => return 0,
                None => self.roster.ended.wait(places),
                Some(0) => return left,
                Some(remaining) => {
                    let remaining = Duration::from_nanos(remaining);
                    self.roster.ended.wait_timeout(&self.roster.places, places, remaining)
                }
            };
        }
    }

    /// Joins the threads, which are done, and tells how they ended.
    pub(crate) fn join_threads(&self) -> Vec<Ending> {
        let mut places = self.roster.places.lock();
        let taken: Vec<_> = places
            .iter_mut()
            .filter(|place| place.thread.is_some())
            .map(|place| (place.thread.take(), place.ending.take()))
            .collect();
        drop(places);
        let join = |(thread, ending): (Option<JoinHandle<()>>, Option<Ending>)| {
            let own = thread::current().id();
            match thread.filter(|thread| thread.thread().id() != own).map(JoinHandle::join) {
                Some(Err(panic)) => {
                    // A stop hook; the panic hook has printed it.
                    upcall::discard(panic);
                    Ending::Panicked
                }
                _ => ending.unwrap_or(Ending::Left(Left::Shutdown)),
            }
        };
        taken.into_iter().map(join).collect()
    }

    pub(crate) fn metrics(&self) -> Metrics {
        if !self.is_ours() {
            return Metrics::default();
        }
        let places = self.roster.places.lock();
        let state = self.shared.rank.lock();
        let now = now();
        // Those that have never been needed are nobody.
        let own = places.iter().filter(|place| place.is_known).map(|place| &place.worker);
        let joined = state.workers().iter().filter(|worker| worker.is_joined);
        Metrics {
            threads: own.chain(joined).map(|worker| worker.metrics(now)).collect(),
            departed: state.departed().clone(),
            without_leader: state.vacant(now),
            uptime: Duration::from_nanos(now - self.built),
            // Relaxed: a number that stands for itself.
            dropped: self.shared.demux.inner.dropped.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn has_current_thread(&self) -> bool {
        let id = &self.shared.demux.inner.id;
        // Gone already when a destructor of another of this thread's locals asks: then it has left.
        let joined = CURRENT.try_with(|pools| pools.borrow().contains(id)).unwrap_or(false);
        // An enlisted thread goes through its roles by itself, and is known by the handler it is in.
        joined || upcall::is_inside_of(*id)
    }

    /// Notes, while `code` runs, that the calling thread takes part in this pool.
    pub(crate) fn with_current_thread<R>(&self, code: impl FnOnce() -> R) -> R {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                let _ = CURRENT.try_with(|pools| pools.borrow_mut().pop());
            }
        }
        // Fails in a destructor of another of the thread's locals, which is no handler.
        let _ = CURRENT.try_with(|pools| pools.borrow_mut().push(self.shared.demux.inner.id));
        let _reset = Reset;
        code()
    }

    /// Starts a thread at a place. Who builds the pool hears how it went by `report`; else the rank does,
    /// which has asked for the thread.
    fn start_thread(
        self: &Plain<Crew>,
        place: &mut Place,
        number: usize,
        report: Option<mpsc::Sender<Result<()>>>,
    ) -> io::Result<()> {
        let mut thread = thread::Builder::new().name(place.worker.name.clone());
        if let Some(bytes) = self.terms.stack_size {
            thread = thread.stack_size(bytes);
        }
        let (crew, worker) = (Plain::clone(self), Arc::clone(&place.worker));
        place.thread = Some(thread.spawn(move || crew.live(number, worker, report))?);
        place.is_taken = true;
        place.is_known = true;
        place.ending = None;
        Ok(())
    }

    /// The life of one of the pool's own threads.
    fn live(
        self: Plain<Crew>,
        place: usize,
        worker: Arc<Worker>,
        report: Option<mpsc::Sender<Result<()>>>,
    ) {
        let index = worker.index;
        let on_stop = self.terms.on_stop.clone();
        let mut departure =
            Departure { roster: Arc::clone(&self.roster), place, ending: Ending::Panicked };
        let started = self.prepare(place, index);
        let follower = match &started {
            Ok(()) => self.enlist(worker, None),
            Err(_) => Err(Error::ShutDown),
        };
        match report {
            // Nobody listens any more once another thread's start has failed.
            Some(report) => _ = report.send(started),
            None => self.shared.rank.lock().recruited(follower.is_ok()),
        }
        let take_part = |follower| self.with_current_thread(|| roles::take_part(follower));
        let left = follower.map_or(Left::Shutdown, take_part);
        let process = self.shared.demux.inner.process;
        // The handles may outlive us: they are the crew's, and others may hold it.
        drop(self);
        if let Some(hook) = on_stop {
            hook(index);
            process.refuse_child();
        }
        departure.ending = Ending::Left(left);
    }

    /// What a thread does before it takes part.
    fn prepare(&self, place: usize, index: usize) -> Result<()> {
        self.terms.setups[place % self.terms.setups.len()].apply(index)?;
        if let Some(hook) = &self.terms.on_start {
            upcall::contain(OnPanic::Close, || hook(index))
                .map_err(|_| Error::StartHook { thread: index })?;
        }
        // The hook may have forked.
        self.shared.demux.inner.process.refuse_child();
        Ok(())
    }
}

impl Recruiter for Plain<Crew> {
    fn recruit(&self) -> bool {
        let mut places = self.roster.places.lock();
        let free = places.iter().position(|place| !place.is_taken);
        let place = free.unwrap_or_else(|| {
            // One that has left the pool is still in its stop hook.
            places.push(Place::new(&self.terms, self.next_index(), 0));
            places.len() - 1
        });
        self.start_thread(&mut places[place], place, None).is_ok()
    }
}

/// Tells the roster of a thread's end, however it comes.
struct Departure {
    roster: Arc<Roster>,
    place: usize,
    ending: Ending,
}

impl Drop for Departure {
    fn drop(&mut self) {
        let ending = std::mem::replace(&mut self.ending, Ending::Panicked);
        let mut places = self.roster.places.lock();
        let place = &mut places[self.place];
        place.is_taken = false;
        place.ending = Some(ending);
        drop(places);
        self.roster.ended.notify_all();
    }
}

thread_local! {
    /// The pools, by their handle sets, that this thread takes part in: more than one if a handler of
    /// one joins another.
    static CURRENT: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

fn in_public(overrun: rank::Overrun, set: u32) -> Overrun {
    let handle = HandleId { token: Token::unpack(overrun.event), set };
    Overrun { handle, thread: overrun.thread, elapsed: overrun.elapsed }
}
