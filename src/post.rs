//! Work for the pool that no descriptor announces: posted closures, and events from elsewhere.

use std::collections::VecDeque;

use crate::demux::Dispatched;
use crate::error::{Error, Result};
use crate::handle_set::{HandleSet, Inner};
use crate::handler::Context;
use crate::sync::atomic::Ordering;
use crate::sys::epoll::{Event, Events, Flags};
use crate::token::Token;
use crate::upcall::{OnPanic, Panicked, contain};

type Job = Box<dyn FnOnce(&mut Context<'_>) + Send>;

/// Closures that wait to be run. For each there is an event on its way, in no particular relation.
pub(crate) struct Posted {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Posted {
    pub(crate) fn new() -> Posted {
        Posted { jobs: VecDeque::new(), closed: false }
    }
}

impl HandleSet {
    /// Has a thread of the pool run a closure, once. Closures are begun in the order they were posted, and
    /// run side by side where threads are free; for one after the other use a
    /// [mailbox](HandleSet::mailbox). A panic is contained and counted.
    ///
    /// Wake-ups coalesce: a burst of posts wakes a thread once, and that one wakes others as it pays.
    /// The closure's [`Context::id`] is nobody's.
    ///
    /// ```
    /// use cabrank::Pool;
    /// use std::sync::mpsc;
    ///
    /// let pool = Pool::builder().threads(2).build()?;
    /// let (tell, told) = mpsc::channel();
    /// pool.handles().post(move |cx| tell.send(cx.thread()).unwrap())?;
    /// assert!(told.recv()? < 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShutDown`] if the pool has ended, [`Error::Forked`]. What is posted and not begun when the
    /// pool ends is dropped, and counted in [`Metrics::dropped`](crate::Metrics::dropped).
    #[doc(alias = "notify")]
    #[doc(alias = "execute")]
    pub fn post(&self, job: impl FnOnce(&mut Context<'_>) + Send + 'static) -> Result<()> {
        self.check_process()?;
        let mut posted = self.inner.posted.lock();
        if posted.closed {
            drop(posted);
            return Err(Error::ShutDown);
        }
        posted.jobs.push_back(Box::new(job));
        drop(posted);
        self.inner.hand_in(Event::new(Flags::IN, Token::POST));
        Ok(())
    }
}

impl Inner {
    /// Leaves an event to the thread that waits. For those who have none of the pool's roles to pass it on.
    pub(crate) fn hand_in(&self, event: Event) {
        self.handed_in.lock().push_back(event);
        self.waker.wake();
    }

    /// Adds what was handed in to the events of a wait. What finds no room makes the next wait return.
    pub(crate) fn collect(&self, events: &mut Events) {
        let mut handed_in = self.handed_in.lock();
        while let Some(event) = handed_in.pop_front() {
            if !events.push(event) {
                handed_in.push_front(event);
                self.waker.wake();
                break;
            }
        }
    }

    /// Runs the oldest posted closure.
    pub(crate) fn run_posted(&self, cx: &mut Context<'_>) -> Dispatched {
        let job = self.posted.lock().jobs.pop_front();
        let Some(job) = job else {
            return Dispatched { stale: true, ..Dispatched::default() };
        };
        let outcome = self.call(|| job(cx));
        self.process.refuse_child();
        Dispatched { handled: true, panicked: u32::from(outcome.is_err()), ..Dispatched::default() }
    }

    /// The pool has ended: what was not begun is dropped, and nothing is taken in any more.
    pub(crate) fn drop_posted(&self) {
        let mut posted = self.posted.lock();
        posted.closed = true;
        let jobs = std::mem::take(&mut posted.jobs);
        drop(posted);
        // Relaxed: a number that stands for itself.
        self.dropped.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        for job in jobs {
            // Destructors of what the closure has captured are user code, and one that panics must not
            // keep the others from running.
            let _: std::result::Result<(), Panicked> = contain(OnPanic::Close, || drop(job));
        }
    }
}
