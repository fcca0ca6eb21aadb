//! The pool: threads that take turns at one handle set.

use std::cell::RefCell;
use std::fmt;
use std::mem;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::builder::{Builder, Plan, Setup};
use crate::error::{Error, Result};
use crate::handle_set::HandleSet;
use crate::handler::{Context, Control};
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::rank::Rank;
use crate::roles::{self, Left, Shared};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, deadline, now};
use crate::sys::epoll::Events;
use crate::upcall;
use crate::waker::Waker;
use crate::worker::Worker;

/// A thread that waits for a role; see [`Pool::enlist`].
pub type Follower<'p> = roles::Follower<'p, HandleSet>;
/// A thread that waits on the handle set.
pub type Leader<'p> = roles::Leader<'p, HandleSet>;
/// A leader that has detected events and must promote before it may process.
pub type Detected<'p> = roles::Detected<'p, HandleSet>;
/// A thread that has an event to process.
pub type Processing<'p> = roles::Processing<'p, HandleSet>;
/// What a follower becomes.
pub type Turn<'p> = roles::Turn<'p, HandleSet>;
/// What a leader's wait brings.
pub type Watch<'p> = roles::Watch<'p, HandleSet>;

/// A pool of threads that take turns at waiting on a [`HandleSet`]; the thread that detects an event
/// handles it.
///
/// Dropping the pool shuts it down and waits for its threads; dropped inside one of its own handlers it
/// does not wait, and ends when that handler has returned. Use a [`Remote`] to reach it from elsewhere.
#[doc(alias = "LF_Thread_Pool")]
#[doc(alias = "ACE_TP_Reactor")]
pub struct Pool {
    crew: Arc<Crew>,
    threads: Vec<JoinHandle<Left>>,
}

/// What the pool's threads hold on to.
struct Crew {
    shared: Shared<HandleSet>,
    events: NonZeroUsize,
    built: u64,
    /// The index of the next application thread that joins.
    next_index: AtomicUsize,
    /// The pool's own threads, also when they have left.
    own: Mutex<Vec<Arc<Worker>>>,
}

/// Reaches a pool from any thread, for as long as it lives; clone it freely.
#[derive(Clone)]
pub struct Remote {
    crew: Arc<Crew>,
}

/// What a pool did in its life.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The counters at the end.
    pub metrics: Metrics,
    /// How each of the pool's own threads ended, by index.
    pub threads: Vec<Ending>,
}

/// How a thread of the pool ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ending {
    /// It left the pool.
    Left(Left),
    /// It panicked outside a handler, in a hook.
    Panicked,
}

/// A pool whose threads were still in handlers when the time for its end was over.
#[derive(Debug)]
pub struct Unfinished {
    /// The pool, which takes in no more events; wait again, or drop it to wait for as long as it takes.
    pub pool: Pool,
    /// [`Error::StillRunning`].
    pub error: Error,
}

impl Pool {
    /// A builder with the defaults.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn start(builder: &Builder, policy: Policy, plan: Plan) -> Result<Pool> {
        let handles = HandleSet::new(builder.deactivation, builder.on_panic, builder.max_handles)?;
        let crew = Arc::new(Crew {
            shared: Shared { demux: handles, rank: Rank::new(policy) },
            events: NonZeroUsize::new(policy.events).unwrap_or(NonZeroUsize::MIN),
            built: now(),
            next_index: AtomicUsize::new(plan.threads.len()),
            own: Mutex::new(Vec::with_capacity(plan.threads.len())),
        });
        let mut pool = Pool { crew, threads: Vec::with_capacity(plan.threads.len()) };
        let (report, reports) = mpsc::channel();
        // An error on the way drops the pool, which stops and joins the threads it has so far.
        for (index, setup) in plan.threads.into_iter().enumerate() {
            pool.spawn(builder, index, setup, report.clone())?;
        }
        drop(report);
        reports.into_iter().collect::<Result<()>>()?;
        Ok(pool)
    }

    /// The handles this pool watches.
    pub fn handles(&self) -> &HandleSet {
        &self.crew.shared.demux
    }

    /// Has a thread of the pool run a closure; see [`HandleSet::post`].
    ///
    /// # Errors
    /// As [`HandleSet::post`].
    pub fn post(&self, job: impl FnOnce(&mut Context<'_>) + Send + 'static) -> Result<()> {
        self.handles().post(job)
    }

    /// Lets the calling thread take part until the pool is shut down.
    ///
    /// Where a handler may shut the pool down before this is called, [`Error::ShutDown`] is as good as
    /// `Ok`.
    ///
    /// # Errors
    /// [`Error::ShutDown`] if that has happened already, [`Error::AlreadyJoined`] inside a handler of
    /// this pool, [`Error::Forked`], [`Error::Wait`].
    pub fn join(&self) -> Result<()> {
        self.take_part(None).map(drop)
    }

    /// Lets the calling thread take part until the pool is shut down or `timeout` has passed. A handler
    /// that runs by then is finished. A leader that leaves is replaced.
    ///
    /// # Errors
    /// As [`join`](Pool::join).
    pub fn join_timeout(&self, timeout: Duration) -> Result<Left> {
        self.take_part(Some(timeout))
    }

    /// Lets the calling thread take part step by step, as [`join`](Pool::join) does in a loop.
    ///
    /// Going through the roles is up to you, and the types see to the order:
    ///
    /// ```text
    ///              chosen, or a seat is free              an event
    ///   Follower --------------------------> Leader ---------------------> Detected
    ///      ^  |                                |                               |
    ///      |  | an event that another          | nothing                       | promote
    ///      |  | thread has detected            v                               v
    ///      |  +------------------------> (Follower)                       Processing
    ///      |                                                                   |
    ///      +-------------------------------------------------------------------+
    ///                                    process
    /// ```
    ///
    /// `promote` gives a follower back if enough threads run already, which
    /// is no failure: go on following. Leave by dropping what you have, in any role; what it holds is
    /// passed on. What is forgotten instead ([`mem::forget`]) holds its place, and the pool's end, for
    /// ever. Unlike [`join`](Pool::join) this is allowed inside a handler; the thread counts twice then.
    ///
    /// ```
    /// use cabrank::{Pool, Turn, Watch};
    /// # use cabrank::{Interest, Next, handler_fn, sys::eventfd::EventFd};
    ///
    /// let pool = Pool::builder().threads(0).joiners(1).build()?;
    /// # let eventfd = EventFd::new()?;
    /// # eventfd.notify()?;
    /// # let closing = handler_fn(eventfd, |_, _, _| Next::Close);
    /// # pool.handles().register(closing, Interest::READABLE)?;
    /// // … register handlers …
    /// let mut follower = pool.enlist()?;
    /// while !pool.handles().is_empty() {
    ///     follower = match follower.follow() {
    ///         Turn::Lead(leader) => match leader.wait() {
    ///             Watch::Detected(detected) => match detected.promote() {
    ///                 Ok(processing) => processing.process(),
    ///                 Err(follower) => follower,
    ///             },
    ///             Watch::Nothing(follower) => follower,
    ///         },
    ///         Turn::Process(processing) => processing.process(),
    ///         Turn::Leave(why) => panic!("left: {why}"),
    ///     };
    /// }
    /// # assert!(pool.handles().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShutDown`] or [`Error::Forked`].
    pub fn enlist(&self) -> Result<Follower<'_>> {
        self.check_process()?;
        self.crew.enlist(self.crew.joiner(), None)
    }

    /// Asks the pool to stop: handlers that run are finished, nothing else is started, and every thread
    /// leaves. Returns at once, can be called from anywhere and more than once.
    pub fn shutdown(&self) {
        self.crew.shut_down();
    }

    /// Shuts the pool down, waits for all threads, and tells how they fared. When this returns all
    /// handlers are gone, and none will ever run again (I8).
    ///
    /// In a forked child there is nothing to wait for, and the report is empty.
    /// Inside one of the pool's own handlers it cannot wait for itself: it returns at once, with the
    /// counters so far, and the pool ends when the handler has returned. Inside a handler or hook of
    /// another pool it does not wait for handles that other threads are changing or removing at this
    /// moment.
    pub fn finish(mut self) -> Report {
        self.crew.shut_down();
        if self.crew.has_current_thread() {
            self.let_go();
        } else {
            self.await_end(None);
        }
        self.report()
    }

    /// [`finish`](Pool::finish), but waits no longer than `deadline`.
    ///
    /// # Errors
    /// [`Unfinished`], with the pool, if threads are still in handlers then.
    pub fn finish_within(mut self, deadline: Duration) -> Result<Report, Box<Unfinished>> {
        self.crew.shut_down();
        // Inside a handler of the pool there is no point in waiting.
        if !self.crew.has_current_thread() && self.await_end(Some(deadline)) {
            return Ok(self.report());
        }
        let threads = self.crew.shared.rank.lock().in_handlers();
        Err(Box::new(Unfinished { pool: self, error: Error::StillRunning { threads, deadline } }))
    }

    /// Whether the pool has been asked to stop.
    pub fn is_shut_down(&self) -> bool {
        self.crew.shared.rank.is_stopping()
    }

    /// A way to reach this pool from anywhere.
    pub fn remote(&self) -> Remote {
        Remote { crew: Arc::clone(&self.crew) }
    }

    /// A way to get a thread out of its wait, also from a signal handler.
    pub fn waker(&self) -> Waker {
        self.handles().inner.waker.clone()
    }

    /// The counters so far.
    pub fn metrics(&self) -> Metrics {
        self.crew.metrics()
    }

    fn spawn(
        &mut self,
        builder: &Builder,
        index: usize,
        setup: Setup,
        report: mpsc::Sender<Result<()>>,
    ) -> Result<()> {
        let name = format!("{}-{index}", builder.name);
        let worker = Arc::new(Worker::new(index, name.clone(), setup.scheduling.priority()));
        let mut thread = thread::Builder::new().name(name);
        if let Some(bytes) = builder.stack_size {
            thread = thread.stack_size(bytes);
        }
        let crew = Arc::clone(&self.crew);
        let (on_start, on_stop) = (builder.on_start.clone(), builder.on_stop.clone());
        self.crew.own.lock().push(Arc::clone(&worker));
        let body = move || {
            let started = setup.apply(index).and_then(|()| match &on_start {
                Some(hook) => upcall::contain(upcall::OnPanic::Close, || hook(index))
                    .map_err(|_| Error::StartHook { thread: index }),
                None => Ok(()),
            });
            let failed = started.is_err();
            // Nobody listens any more once another thread's start has failed.
            let _ = report.send(started);
            drop(report);
            let left = if failed { Left::Shutdown } else { crew.run(worker, None) };
            // The handles may outlive us: they are the crew's, and others may hold it.
            drop(crew);
            if let Some(hook) = &on_stop {
                hook(index);
            }
            left
        };
        let handle = thread.spawn(body).map_err(|source| Error::Spawn { thread: index, source })?;
        self.threads.push(handle);
        Ok(())
    }

    fn take_part(&self, timeout: Option<Duration>) -> Result<Left> {
        self.check_process()?;
        if self.crew.has_current_thread() {
            return Err(Error::AlreadyJoined);
        }
        let deadline = timeout.map(deadline);
        let follower = self.crew.enlist(self.crew.joiner(), deadline)?;
        let left = self.crew.with_current_thread(|| roles::take_part(follower));
        match left {
            Left::Failed(source) => Err(Error::Wait { source }),
            left => Ok(left),
        }
    }

    fn check_process(&self) -> Result<()> {
        if self.handles().inner.process.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Waits for none of the threads. In a forked child they do not even exist, and are not to be touched.
    fn let_go(&mut self) {
        let threads = mem::take(&mut self.threads);
        if self.check_process().is_err() {
            mem::forget(threads);
        }
    }

    /// Waits until the last thread has left and the handles are gone; whether they are.
    fn await_end(&mut self, timeout: Option<Duration>) -> bool {
        if self.check_process().is_err() {
            // Locks of the parent may be held for ever.
            self.let_go();
            return true;
        }
        let deadline = timeout.map(deadline);
        self.crew.shared.clear_if_deserted();
        if !self.crew.shared.rank.await_cleared(deadline) {
            return false;
        }
        // A handle may be in the hands of a thread that is changing or registering it. Inside a handler or
        // a hook that thread may be this one.
        upcall::is_inside() || self.handles().await_empty(deadline)
    }

    /// Joins the threads, which have left the pool.
    fn report(mut self) -> Report {
        let ending = |thread| join(thread).map_or(Ending::Panicked, Ending::Left);
        let threads = mem::take(&mut self.threads).into_iter().map(ending).collect();
        Report { metrics: self.crew.metrics(), threads }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.crew.shut_down();
        if self.crew.has_current_thread() {
            // Dropped by a handler of its own: this thread must go on for the pool to end. The threads
            // end by themselves, and the last to leave takes the handles out.
            self.let_go();
            return;
        }
        self.await_end(None);
        for thread in self.threads.drain(..) {
            // A panic in the stop hook has been printed by the panic hook.
            let _ = join(thread);
        }
    }
}

/// Waits for a thread that has left the pool; how it left, unless it panicked. The calling thread does not
/// wait for itself: a stop hook, or the destructor of a thread's local, may drop the pool.
fn join(thread: JoinHandle<Left>) -> Option<Left> {
    if thread.thread().id() == thread::current().id() {
        return Some(Left::Shutdown);
    }
    thread.join().map_err(upcall::discard).ok()
}

impl Crew {
    /// One of the pool's own threads.
    fn run(&self, worker: Arc<Worker>, deadline: Option<u64>) -> Left {
        match self.enlist(worker, deadline) {
            Ok(follower) => self.with_current_thread(|| roles::take_part(follower)),
            Err(_) => Left::Shutdown,
        }
    }

    fn enlist(&self, worker: Arc<Worker>, deadline: Option<u64>) -> Result<Follower<'_>> {
        Follower::enlist(&self.shared, worker, Events::with_capacity(self.events), deadline)
    }

    fn joiner(&self) -> Arc<Worker> {
        // Relaxed: only the uniqueness of the number matters.
        let index = self.next_index.fetch_add(1, Ordering::Relaxed);
        let name = thread::current().name().map_or_else(|| format!("joined-{index}"), String::from);
        Arc::new(Worker::joined(index, name))
    }

    fn shut_down(&self) {
        if self.shared.demux.inner.process.is_current() {
            Control::shut_down(&self.shared);
        }
    }

    fn metrics(&self) -> Metrics {
        if !self.shared.demux.inner.process.is_current() {
            return Metrics::default();
        }
        let own = self.own.lock();
        let is_own = |worker: &Arc<Worker>| own.iter().any(|other| Arc::ptr_eq(other, worker));
        let state = self.shared.rank.lock();
        let now = now();
        let joined = state.workers().iter().filter(|worker| !is_own(worker));
        Metrics {
            threads: own.iter().chain(joined).map(|worker| worker.metrics(now)).collect(),
            departed: state.departed().clone(),
            without_leader: state.vacant(now),
            uptime: Duration::from_nanos(now - self.built),
            // Relaxed: a number that stands for itself.
            dropped: self.shared.demux.inner.dropped.load(Ordering::Relaxed),
        }
    }

    fn has_current_thread(&self) -> bool {
        let id = &self.shared.demux.inner.id;
        // Gone already when a destructor of another of this thread's locals asks: then it has left.
        let joined = CURRENT.try_with(|pools| pools.borrow().contains(id)).unwrap_or(false);
        // An enlisted thread goes through its roles by itself, and is known by the handler it is in.
        joined || upcall::is_inside_of(*id)
    }

    /// Notes, while `code` runs, that the calling thread takes part in this pool.
    fn with_current_thread<R>(&self, code: impl FnOnce() -> R) -> R {
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
}

thread_local! {
    /// The pools, by their handle sets, that this thread takes part in: more than one if a handler of
    /// one joins another.
    static CURRENT: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

impl Remote {
    /// The handles the pool watches; they are gone when the pool is.
    pub fn handles(&self) -> &HandleSet {
        &self.crew.shared.demux
    }

    /// Asks the pool to stop, as [`Pool::shutdown`] does.
    pub fn shutdown(&self) {
        self.crew.shut_down();
    }

    /// Whether the pool has been asked to stop.
    pub fn is_shut_down(&self) -> bool {
        self.crew.shared.rank.is_stopping()
    }

    /// The pool's counters so far.
    pub fn metrics(&self) -> Metrics {
        self.crew.metrics()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads.len())
            .field("handles", self.handles())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("handles", self.handles()).finish_non_exhaustive()
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Unfinished {}
