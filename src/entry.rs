//! A tenant of the table: the handler and what the kernel has been told about its handle.

use std::os::fd::{AsRawFd, RawFd};

use crate::cell::OnlyMut;
use crate::handler::{Context, Handler, Next, Reason, SharedHandler};
use crate::interest::Ready;
use crate::settle::{Arming, Tenant};
use crate::token::HandleId;

pub(crate) struct Entry {
    /// The number that was registered, whatever the handler returns by now.
    pub(crate) fd: RawFd,
    pub(crate) arming: Arming,
    kind: Kind,
}

pub(crate) enum Kind {
    Exclusive(OnlyMut<Box<dyn Handler>>),
    Shared(Box<dyn SharedHandler>),
}

impl Kind {
    pub(crate) fn exclusive(handler: impl Handler + 'static) -> Kind {
        Kind::Exclusive(OnlyMut::new(Box::new(handler)))
    }

    pub(crate) fn shared(handler: impl SharedHandler + 'static) -> Kind {
        Kind::Shared(Box::new(handler))
    }
}

impl Entry {
    pub(crate) fn new(fd: RawFd, kind: Kind, arming: Arming) -> Entry {
        Entry { fd, arming, kind }
    }

    /// Runs an exclusive handler; also tells whether the handler still has its descriptor. User code.
    pub(crate) fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> (Next, bool) {
        let next = match &mut self.kind {
            Kind::Exclusive(handler) => handler.get_mut().ready(ready, cx),
            Kind::Shared(handler) => handler.ready(ready, cx),
        };
        (next, self.has_its_descriptor())
    }

    /// Runs a shared handler. User code.
    pub(crate) fn ready_shared(&self, ready: Ready, cx: &mut Context<'_>) -> (Next, bool) {
        match &self.kind {
            Kind::Exclusive(_) => unreachable!("the state word knows which handlers are shared"),
            Kind::Shared(handler) => {
                let next = handler.ready(ready, cx);
                (next, handler.as_fd().as_raw_fd() == self.fd)
            }
        }
    }

    /// Whether the handler's descriptor is the registered one. User code.
    pub(crate) fn has_its_descriptor(&mut self) -> bool {
        let now = match &mut self.kind {
            Kind::Exclusive(handler) => handler.get_mut().as_fd().as_raw_fd(),
            Kind::Shared(handler) => handler.as_fd().as_raw_fd(),
        };
        now == self.fd
    }

    /// Runs the hook. User code.
    pub(crate) fn closed(&mut self, id: HandleId, reason: Reason) {
        match &mut self.kind {
            Kind::Exclusive(handler) => handler.get_mut().closed(id, reason),
            Kind::Shared(handler) => handler.closed(id, reason),
        }
    }
}

impl Tenant for Entry {
    fn arming(&mut self) -> &mut Arming {
        &mut self.arming
    }
}
