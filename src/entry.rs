//! A tenant of the table: the handler and what has been arranged for its handle.

use std::os::fd::{AsRawFd, RawFd};

use crate::cell::OnlyMut;
#[cfg(not(any(loom, shuttle)))]
use crate::cell::Slot;
use crate::deadlines::Deadline;
use crate::handler::{Context, Handler, Next, Reason, SharedHandler};
use crate::interest::Ready;
use crate::settle::{Arming, Tenant};
use crate::token::HandleId;

pub(crate) struct Entry {
    /// The handler.
    resident: Box<dyn Resident>,
    pub(crate) deadline: Deadline,
    /// The number that was registered, whatever the handler returns by now, or `NONE`.
    fd: RawFd,
    pub(crate) arming: Arming,
}

/// A handler of any kind. All of it is user code.
pub(crate) trait Resident: Send + Sync {
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next;

    /// Runs the handler beside other threads.
    fn ready_shared(&self, _ready: Ready, _cx: &mut Context<'_>) -> Next {
        unreachable!("the state word knows which handlers are shared")
    }

    /// The handler's descriptor, if it has one.
    fn fd(&mut self) -> Option<RawFd>;

    /// The same beside other threads.
    fn fd_shared(&self) -> Option<RawFd> {
        unreachable!("the state word knows which handlers are shared")
    }

    fn closed(&mut self, id: HandleId, reason: Reason);

    /// Whether something waits for the handle that the kernel does not know of.
    fn has_mail(&self) -> bool {
        false
    }

    /// Whether it wants to be told of its deadline.
    fn has_deadlines(&self) -> bool {
        true
    }
}

/// A handler that one thread at a time runs.
pub(crate) struct Exclusive<H>(pub(crate) OnlyMut<H>);

/// A handler that several threads run at once.
pub(crate) struct Concurrent<H>(pub(crate) H);

impl Entry {
    pub(crate) fn new(
        resident: Box<dyn Resident>,
        fd: Option<RawFd>,
        arming: Arming,
        deadline: Deadline,
    ) -> Entry {
        Entry { resident, deadline, fd: fd.unwrap_or(NONE), arming }
    }

    /// The number that was registered. `None`: a handle of the engine's own, which the kernel does not know.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        (self.fd != NONE).then_some(self.fd)
    }

    /// Runs the handler; also tells whether it still has its descriptor. User code.
    pub(crate) fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> (Next, bool) {
        let next = self.resident.ready(ready, cx);
        (next, self.has_its_descriptor())
    }

    /// Runs a shared handler. User code.
    pub(crate) fn ready_shared(&self, ready: Ready, cx: &mut Context<'_>) -> (Next, bool) {
        let next = self.resident.ready_shared(ready, cx);
        (next, self.has_its_descriptor_shared())
    }

    /// Whether a shared handler's descriptor is the registered one. User code.
    pub(crate) fn has_its_descriptor_shared(&self) -> bool {
        self.resident.fd_shared() == self.fd()
    }

    /// Whether the handler's descriptor is the registered one. User code.
    pub(crate) fn has_its_descriptor(&mut self) -> bool {
        self.resident.fd() == self.fd()
    }

    /// Runs the hook. User code.
    pub(crate) fn closed(&mut self, id: HandleId, reason: Reason) {
        self.resident.closed(id, reason);
    }

    /// Whether something waits for the handle that the kernel does not know of.
    pub(crate) fn has_mail(&self) -> bool {
        self.resident.has_mail()
    }

    /// Whether it wants to be told of its deadline.
    pub(crate) fn has_deadlines(&self) -> bool {
        self.resident.has_deadlines()
    }
}

impl Tenant for Entry {
    fn arming(&mut self) -> &mut Arming {
        &mut self.arming
    }
}

impl<H: Handler> Resident for Exclusive<H> {
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
        self.0.get_mut().ready(ready, cx)
    }

    fn fd(&mut self) -> Option<RawFd> {
        Some(self.0.get_mut().as_fd().as_raw_fd())
    }

    fn closed(&mut self, id: HandleId, reason: Reason) {
        self.0.get_mut().closed(id, reason);
    }
}

impl<H: SharedHandler> Resident for Concurrent<H> {
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
        self.0.ready(ready, cx)
    }

    fn ready_shared(&self, ready: Ready, cx: &mut Context<'_>) -> Next {
        self.0.ready(ready, cx)
    }

    fn fd(&mut self) -> Option<RawFd> {
        self.fd_shared()
    }

    fn fd_shared(&self) -> Option<RawFd> {
        Some(self.0.as_fd().as_raw_fd())
    }

    fn closed(&mut self, id: HandleId, reason: Reason) {
        self.0.closed(id, reason);
    }
}

/// No descriptor has this number. Not an `Option`, for which there is no room.
const NONE: RawFd = -1;

// One cache line to a slot: its word, its tenant and what is known of it.
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Slot<Entry>>() <= 64);
