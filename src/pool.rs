//! The pool: threads that take turns at one handle set.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::builder::{Builder, Plan};
use crate::crew::Crew;
use crate::error::{Error, Result};
use crate::handle_set::HandleSet;
use crate::handler::Context;
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::roles::{self, Left};
use crate::sync;
use crate::waker::Waker;

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
        Ok(Pool { crew: Crew::start(builder, policy, plan)? })
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
    /// passed on. What is forgotten instead ([`mem::forget`](std::mem::forget)) holds its place, and the pool's end, for
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
    pub fn finish(self) -> Report {
        self.crew.shut_down();
        if self.can_wait() {
            self.crew.await_end(None);
            self.crew.await_threads(None);
        }
        self.report()
    }

    /// [`finish`](Pool::finish), but waits no longer than `deadline`, stop hooks included.
    ///
    /// # Errors
    /// [`Unfinished`], with the pool, if threads are still in handlers or stop hooks then.
    pub fn finish_within(self, deadline: Duration) -> Result<Report, Box<Unfinished>> {
        self.crew.shut_down();
        let latest = Some(sync::deadline(deadline));
        // Inside a handler of the pool there is no point in waiting.
        let inside = self.crew.has_current_thread();
        let ended = !self.crew.is_ours() || !inside && self.crew.await_end(latest);
        let in_hooks =
            if ended && self.crew.is_ours() { self.crew.await_threads(latest) } else { 0 };
        if ended && in_hooks == 0 {
            return Ok(self.report());
        }
        let threads = self.crew.shared.rank.lock().in_handlers() + in_hooks;
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

    fn take_part(&self, timeout: Option<Duration>) -> Result<Left> {
        self.check_process()?;
        if self.crew.has_current_thread() {
            return Err(Error::AlreadyJoined);
        }
        let deadline = timeout.map(sync::deadline);
        let follower = self.crew.enlist(self.crew.joiner(), deadline)?;
        let left = self.crew.with_current_thread(|| roles::take_part(follower));
        match left {
            Left::Failed(source) => Err(Error::Wait { source }),
            left => Ok(left),
        }
    }

    fn check_process(&self) -> Result<()> {
        if self.crew.is_ours() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Whether there is somebody to wait for. Not inside one of the pool's own handlers: this thread must go
    /// on for the pool to end, and the last to leave takes the handles out. Not in a forked child: the
    /// threads are the parent's, and its locks may be held by one of them for ever.
    fn can_wait(&self) -> bool {
        self.crew.is_ours() && !self.crew.has_current_thread()
    }

    fn report(self) -> Report {
        let threads = if self.can_wait() { self.crew.join_threads() } else { Vec::new() };
        Report { metrics: self.crew.metrics(), threads }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.crew.shut_down();
        if self.can_wait() {
            self.crew.await_end(None);
            self.crew.await_threads(None);
            self.crew.join_threads();
        }
    }
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
        f.debug_struct("Pool").field("handles", self.handles()).finish_non_exhaustive()
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
