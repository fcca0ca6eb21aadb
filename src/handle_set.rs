//! The handle set: one epoll instance and its demultiplexing table.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::alarm::AlarmClock;
use crate::cell::{Called, Cause, OnlyMut, Request, Requested, Slot};
use crate::deadlines::{Deadline, Deadlines, NEVER};
use crate::entry::{Concurrent, Entry, Exclusive, Resident};
use crate::error::{Error, Rejected, Result};
use crate::handler::{Blocking, Deactivation, Handler, SharedHandler};
use crate::interest::{Interest, MESSAGE};
use crate::post::Posted;
use crate::settle::Arming;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{self, Arc, Condvar, Mutex, now};
use crate::sys::epoll::{Epoll, Event};
use crate::sys::fork::Process;
use crate::table::Table;
use crate::token::{HandleId, Token};
use crate::upcall::{self, OnPanic};
use crate::waker::Waker;

/// The handles that a pool watches, and who serves each: clone it freely and use it from any thread,
/// also from inside any handler.
///
/// | call | while the handler runs, on another thread or your own |
/// |---|---|
/// | [`register`](HandleSet::register) | independent of it |
/// | [`set_interest`](HandleSet::set_interest) | replaces the interest of its verdict |
/// | [`suspend`](HandleSet::suspend), [`resume`](HandleSet::resume) | decides, instead of its verdict, whether the handle is armed |
/// | [`remove`](HandleSet::remove) | waits for it, or from inside a handler is carried out when it returns |
///
/// [`Next::Close`](crate::Next::Close) is never overruled. Handles that are removed, or that the kernel
/// refuses to change, have [`closed`](Handler::closed) called by the calling thread: do not hold a lock
/// that it takes.
#[derive(Clone)]
#[doc(alias = "Handle_Set")]
#[doc(alias = "Reactor")]
pub struct HandleSet {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) epoll: Epoll,
    pub(crate) waker: Waker,
    pub(crate) table: Table<Entry>,
    /// Tells this set's handle ids from another's.
    pub(crate) id: u32,
    pub(crate) process: Process,
    pub(crate) on_panic: OnPanic,
    deactivation: Deactivation,
    pub(crate) deadlines: Deadlines<AlarmClock>,
    /// Some handler has been said to block, or not to, or has taken long enough to be watched. Until then
    /// nobody has to look at what is known of each.
    pub(crate) has_habits: AtomicBool,
    /// What did not come from the kernel; the waker tells of it.
    pub(crate) handed_in: Mutex<VecDeque<Event>>,
    pub(crate) posted: Mutex<Posted>,
    /// Closures and messages that were dropped because nobody was left to have them.
    pub(crate) dropped: Arc<AtomicU64>,
    /// Threads that wait for a handle to be gone wait here; see `await_removal`.
    removals: Mutex<()>,
    removed: Condvar,
}

/// How a handle is registered, beyond its interest.
///
/// ```
/// # use cabrank::{Deactivation, Interest, Registration};
/// let registration = Registration::new(Interest::READABLE).deactivation(Deactivation::Edge);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Registration {
    interest: Interest,
    deactivation: Option<Deactivation>,
    suspended: bool,
    deadline: Option<Duration>,
    blocking: Blocking,
}

impl Registration {
    /// With the given interest, and otherwise the pool's choices.
    pub const fn new(interest: Interest) -> Registration {
        Registration {
            interest,
            deactivation: None,
            suspended: false,
            deadline: None,
            blocking: Blocking::Learned,
        }
    }

    /// Chooses the deactivation for this handle instead of the pool's. A shared handle is always
    /// registered by edge.
    pub const fn deactivation(mut self, deactivation: Deactivation) -> Registration {
        self.deactivation = Some(deactivation);
        self
    }

    /// Has the handler called with [`Ready::TIMEOUT`](crate::Ready::TIMEOUT) when this time has passed,
    /// unless it is [moved](crate::Context::set_deadline) before. Shared handles have no deadline.
    pub const fn deadline(mut self, after: Duration) -> Registration {
        self.deadline = Some(after);
        self
    }

    /// Says whether the handler blocks. Default: the pool finds out.
    pub const fn blocking(mut self, blocking: Blocking) -> Registration {
        self.blocking = blocking;
        self
    }

    /// Registers it suspended: nothing is reported before [`HandleSet::resume`].
    pub const fn suspended(mut self) -> Registration {
        self.suspended = true;
        self
    }
}

impl From<Interest> for Registration {
    fn from(interest: Interest) -> Registration {
        Registration::new(interest)
    }
}

/// When a removal takes effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Removal {
    /// The handle is gone, its hook has run, and no call of its handler is under way.
    Done,
    /// A call of its handler is under way, and we are inside a handler ourselves: the same one, or one
    /// that must not wait for another lest both wait for each other. That call finishes, none follows.
    WhenHandlerReturns,
}

impl HandleSet {
    pub(crate) fn new(
        deactivation: Deactivation,
        on_panic: OnPanic,
        limit: usize,
    ) -> Result<HandleSet> {
        // Relaxed: only the uniqueness of the number matters.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let epoll = Epoll::new().map_err(|source| Error::Create { object: "epoll", source })?;
        let waker =
            Waker::new(&epoll).map_err(|source| Error::Create { object: "eventfd", source })?;
        let alarm = AlarmClock::new(&epoll)
            .map_err(|source| Error::Create { object: "timerfd", source })?;
        let inner = Inner {
            epoll,
            waker,
            table: Table::new(limit),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            process: Process::current(),
            on_panic,
            deactivation,
            deadlines: Deadlines::new(alarm),
            has_habits: AtomicBool::new(false),
            handed_in: Mutex::new(VecDeque::new()),
            posted: Mutex::new(Posted::new()),
            dropped: Arc::new(AtomicU64::new(0)),
            removals: Mutex::new(()),
            removed: Condvar::new(),
        };
        Ok(HandleSet { inner: Arc::new(inner) })
    }

    /// Registers a handler, which owns its descriptor, and arms it. Its first call may come before this
    /// returns. The descriptor should be non-blocking, which is not checked: a handler that blocks on it
    /// occupies its thread.
    ///
    /// # Errors
    /// [`Error::NotPollable`], [`Error::AlreadyRegistered`], [`Error::TableFull`],
    /// [`Error::ShutDown`], [`Error::Forked`] or [`Error::Register`], together with the handler.
    #[doc(alias = "register_handler")]
    pub fn register<H>(
        &self,
        handler: H,
        registration: impl Into<Registration>,
    ) -> Result<HandleId, Rejected<H>>
    where
        H: Handler + 'static,
    {
        let fd = handler.as_fd().as_raw_fd();
        let resident =
            |handler| -> Box<dyn Resident> { Box::new(Exclusive(OnlyMut::new(handler))) };
        self.insert(Some(fd), handler, resident, false, registration.into())
    }

    /// Registers a handler that several threads may run at once.
    ///
    /// # Errors
    /// As [`register`](HandleSet::register).
    pub fn register_shared<H>(
        &self,
        handler: H,
        registration: impl Into<Registration>,
    ) -> Result<HandleId, Rejected<H>>
    where
        H: SharedHandler + 'static,
    {
        let fd = handler.as_fd().as_raw_fd();
        let edge = registration.into().deactivation(Deactivation::Edge);
        let registration = Registration { deadline: None, ..edge };
        let resident = |handler| -> Box<dyn Resident> { Box::new(Concurrent(handler)) };
        self.insert(Some(fd), handler, resident, true, registration)
    }

    /// Changes what a handle waits for. A suspended handle stays suspended.
    ///
    /// If the kernel refuses, [`closed`](Handler::closed) is called here: do not hold a lock that it takes.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`], [`Error::ForeignHandle`], [`Error::Forked`], or
    /// [`Error::Change`] if the kernel refuses, which closes the handle.
    pub fn set_interest(&self, id: HandleId, interest: Interest) -> Result<()> {
        self.request(id, Request::Interest(interest)).map(drop)
    }

    /// Deactivates a handle until it is resumed. A call of its handler that is under way finishes. A peer
    /// that leaves meanwhile is noticed when it is resumed.
    ///
    /// If the kernel refuses, [`closed`](Handler::closed) is called here: do not hold a lock that it takes.
    ///
    /// # Errors
    /// As [`set_interest`](HandleSet::set_interest). Suspending twice is not an error.
    #[doc(alias = "deactivate_handle")]
    #[doc(alias = "suspend_handler")]
    pub fn suspend(&self, id: HandleId) -> Result<()> {
        self.request(id, Request::Suspend).map(drop)
    }

    /// Reactivates a handle; what is ready by then is reported, a peer that has left included. This does not
    /// call the handler by itself: to have it called in any case, [`notify`](HandleSet::notify) it.
    ///
    /// If the kernel refuses, [`closed`](Handler::closed) is called here: do not hold a lock that it takes.
    ///
    /// # Errors
    /// As [`set_interest`](HandleSet::set_interest). Resuming an active handle polls it again.
    #[doc(alias = "reactivate_handle")]
    #[doc(alias = "resume_handler")]
    pub fn resume(&self, id: HandleId) -> Result<()> {
        self.request(id, Request::Resume).map(drop)
    }

    /// Has the handler called with [`Ready::TIMEOUT`](crate::Ready::TIMEOUT) when `after` has passed from
    /// now, in place of any deadline it had. Its own calls set it by
    /// [`Context::set_deadline`](crate::Context::set_deadline).
    ///
    /// # Errors
    /// As [`set_interest`](HandleSet::set_interest), and [`Error::SharedHandle`].
    #[doc(alias = "schedule_timer")]
    #[doc(alias = "reset_timer_interval")]
    pub fn set_deadline(&self, id: HandleId, after: Duration) -> Result<()> {
        self.ask_deadline(id, sync::deadline(after).min(NEVER - 1))
    }

    /// Takes a handle's deadline away. A call for it that is under way finishes; from inside a handler
    /// it may have been decided upon already.
    ///
    /// # Errors
    /// As [`set_deadline`](HandleSet::set_deadline).
    pub fn clear_deadline(&self, id: HandleId) -> Result<()> {
        self.ask_deadline(id, NEVER)
    }

    /// Has the handler called, with [`Ready::MESSAGE`](crate::Ready::MESSAGE) and also if it is suspended.
    /// Calls that come before it has begun make one. What was done before this is visible to it.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`], [`Error::ForeignHandle`], [`Error::SharedHandle`], [`Error::Forked`].
    #[doc(alias = "notify_handler")]
    pub fn notify(&self, id: HandleId) -> Result<()> {
        let slot = self.slot(id)?;
        match slot.call(id.token.generation) {
            Called::Send => {
                self.inner.hand_in(Event::new(MESSAGE, id.token.pack()));
                Ok(())
            }
            Called::Covered => Ok(()),
            Called::Shared => Err(Error::SharedHandle { id }),
            Called::Unknown => Err(Error::UnknownHandle { id }),
        }
    }

    /// Takes a handle out, runs its hook and drops its handler.
    ///
    /// When this returns [`Removal::Done`] the handler is gone and will never be called (I6). A call
    /// that is under way on another thread is waited for, so do not hold a lock that the handler takes.
    /// Inside a handler it does not wait; see [`Removal::WhenHandlerReturns`].
    ///
    /// # Errors
    /// [`Error::UnknownHandle`], [`Error::ForeignHandle`] or [`Error::Forked`].
    #[doc(alias = "remove_handler")]
    pub fn remove(&self, id: HandleId) -> Result<Removal> {
        let awaited = !upcall::is_inside();
        let removal = self.request(id, Request::Remove { cause: Cause::Removed, awaited })?;
        if removal == Removal::WhenHandlerReturns && awaited {
            self.await_removal(id.token);
            return Ok(Removal::Done);
        }
        Ok(removal)
    }

    /// Whether the handle is still registered. A glance: it may be over at once.
    pub fn contains(&self, id: HandleId) -> bool {
        let slot = self.inner.table.get(id.token.slot);
        id.set == self.inner.id
            && slot.is_some_and(|slot| slot.tenant() == Some(id.token.generation))
    }

    /// How many handles are registered. In a forked child none are.
    pub fn len(&self) -> usize {
        // The parent's lock may be held for ever.
        if self.check_process().is_err() {
            return 0;
        }
        self.inner.table.len()
    }

    /// Whether no handle is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes every handle out, and lets none in any more. A handle that another thread has at this moment,
    /// to change or to register it, is taken out by that thread; see [`await_empty`](Self::await_empty).
    pub(crate) fn clear(&self) {
        self.inner.table.close();
        self.inner.drop_posted();
        for (number, slot) in self.inner.table.slots() {
            if let Some(generation) = slot.tenant() {
                let token = Token { slot: number, generation };
                // Unknown means gone already; deferred, that its owner takes it out.
                let _ = self.request(HandleId { token, set: self.inner.id }, SHUTDOWN);
            }
        }
    }

    /// Waits until the last handle is gone, or until `deadline`; whether it is.
    pub(crate) fn await_empty(&self, deadline: Option<u64>) -> bool {
        let mut waiting = self.inner.removals.lock();
        while !self.is_empty() {
            waiting = match deadline.map(|deadline| deadline.saturating_sub(now())) {
                None => self.inner.removed.wait(waiting),
                Some(0) => return false,
                Some(remaining) => {
                    let remaining = Duration::from_nanos(remaining);
                    self.inner.removed.wait_timeout(&self.inner.removals, waiting, remaining)
                }
            };
        }
        true
    }

    /// Lets a handler move in; with no descriptor, one that the kernel need not know of.
    pub(crate) fn insert<H>(
        &self,
        fd: Option<RawFd>,
        handler: H,
        resident: impl FnOnce(H) -> Box<dyn Resident>,
        concurrent: bool,
        registration: Registration,
    ) -> Result<HandleId, Rejected<H>> {
        if let Err(error) = self.check_process() {
            return Err(Rejected { error, handler });
        }
        let (number, slot) = match self.inner.table.take_free() {
            Ok(free) => free,
            Err(error) => return Err(Rejected { error, handler }),
        };
        let interest = registration.interest;
        let armed = !registration.suspended;
        let deactivation = registration.deactivation.unwrap_or(self.inner.deactivation);
        let token = Token { slot: number, generation: slot.generation() };
        slot.expect(registration.blocking);
        if registration.blocking != Blocking::Learned {
            self.inner.note_habits();
        }
        // Reserved first, so that an event that comes before the handler is in its place is noted.
        let reserved = slot.reserve(interest, armed, concurrent);
        let arming = Arming { deactivation, armed: armed.then_some(interest) };
        let due = registration.deadline.map_or(NEVER, |after| sync::deadline(after).min(NEVER - 1));
        if let Some(fd) = fd {
            let flags = deactivation.flags(arming.armed);
            if let Err(source) = self.inner.epoll.add_raw(fd, flags, token.pack()) {
                if self.inner.table.put_back(number, reserved).awaited {
                    self.inner.announce_removal();
                }
                return Err(Rejected { error: refused(fd, source), handler });
            }
        }
        let entry = Entry::new(resident(handler), fd, arming, Deadline::new(due));
        let id = HandleId { token, set: self.inner.id };
        // A failure to re-arm here has closed the handle and told its hook, as it would later.
        let _ = self.inner.settle_request(reserved.fill(entry), token);
        if self.inner.table.is_closed() {
            // The pool has ended since the slot was taken, and `clear` may have passed it by while it
            // was vacant still.
            let _ = self.request(id, SHUTDOWN);
        }
        Ok(id)
    }

    /// Whether something has been asked of a handle whose handler runs, and waits for it to return.
    pub(crate) fn is_asked(&self, id: HandleId) -> bool {
        self.inner.table.get(id.token.slot).is_some_and(Slot::is_asked)
    }

    fn slot(&self, id: HandleId) -> Result<&Slot<Entry>> {
        self.check_process()?;
        if id.set != self.inner.id {
            return Err(Error::ForeignHandle { id });
        }
        self.inner.table.get(id.token.slot).ok_or(Error::UnknownHandle { id })
    }

    fn ask_deadline(&self, id: HandleId, due: u64) -> Result<()> {
        self.slot(id)?;
        self.inner.deadlines.ask(id.token, due);
        let asked = self.request(id, Request::Deadline);
        if matches!(asked, Err(Error::UnknownHandle { .. } | Error::SharedHandle { .. })) {
            self.inner.deadlines.take_asked(id.token);
        }
        asked.map(drop)
    }

    fn request(&self, id: HandleId, request: Request) -> Result<Removal> {
        match self.slot(id)?.request(id.token.generation, request) {
            Requested::Owned(owned) => match self.inner.settle_request(owned, id.token) {
                Ok(()) => Ok(Removal::Done),
                Err(source) => Err(Error::Change { id, source }),
            },
            Requested::Deferred => Ok(Removal::WhenHandlerReturns),
            Requested::Refused => Err(Error::SharedHandle { id }),
            Requested::Unknown => Err(Error::UnknownHandle { id }),
        }
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        if self.inner.process.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    fn await_removal(&self, token: Token) {
        let Some(slot) = self.inner.table.get(token.slot) else { return };
        let mut waiting = self.inner.removals.lock();
        while slot.generation() == token.generation {
            waiting = self.inner.removed.wait(waiting);
        }
    }
}

impl Inner {
    /// A slot that somebody waits for has been vacated.
    pub(crate) fn announce_removal(&self) {
        // The lock, so that a waiter has either seen the new generation or is waiting.
        drop(self.removals.lock());
        self.removed.notify_all();
    }
}

/// The epoll descriptor, for nesting the whole set in another loop: readable while a handle is ready.
impl AsFd for HandleSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.epoll.as_fd()
    }
}

impl fmt::Debug for HandleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleSet")
            .field("id", &self.inner.id)
            .field("handles", &self.len())
            .finish_non_exhaustive()
    }
}

const SHUTDOWN: Request = Request::Remove { cause: Cause::Shutdown, awaited: false };

fn refused(fd: RawFd, source: std::io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EPERM) => Error::NotPollable { fd },
        Some(libc::EEXIST) => Error::AlreadyRegistered { fd },
        _ => Error::Register { fd, source },
    }
}
