//! From an event to its handler and back: claim the slot, run the handler, carry out what it and
//! others want, give the slot back.

use std::io;
use std::process;
use std::time::Duration;

use crate::cell::{Cause, Entered, Owned, Request, Shared};
use crate::demux::{Demultiplexer, Dispatched};
use crate::entry::Entry;
use crate::handle_set::{HandleSet, Inner};
use crate::handler::{Caller, Context, Deactivation, Next, Reason};
use crate::interest::Ready;
use crate::settle::{Settled, Wanted, Why, settle};
use crate::sys::epoll::{Event, Events, Flags};
use crate::token::{HandleId, Token};
use crate::upcall::{Panicked, contain};

impl Demultiplexer for HandleSet {
    fn wait(
        &self,
        events: &mut Events,
        most: usize,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        self.inner.epoll.wait_at_most(events, most, timeout)?;
        let woken = events.take_out(Token::WAKER);
        if woken {
            self.inner.waker.answered();
            self.inner.collect(events);
        }
        Ok(woken)
    }

    fn dispatch(&self, event: Event, caller: Caller<'_>) -> Dispatched {
        let token = Token::unpack(event.data());
        let stale = Dispatched { stale: true, ..Dispatched::default() };
        let Some(slot) = self.inner.table.get(token.slot) else { return stale };
        let mut cx = Context { id: HandleId { token, set: self.inner.id }, handles: self, caller };
        let ready = Ready::from(event.flags());
        match slot.enter(token.generation, event.flags()) {
            Entered::Owned(owned) => self.inner.serve(owned, ready, &mut cx),
            Entered::Shared(shared) => self.inner.serve_shared(shared, ready, &mut cx),
            // Its owner has been told, and polls it again.
            Entered::Noted => Dispatched { noted: true, ..Dispatched::default() },
            Entered::Dormant | Entered::Stale => stale,
        }
    }

    fn wake(&self) {
        self.inner.waker.wake();
    }

    fn clear(&self) {
        HandleSet::clear(self);
    }
}

impl Inner {
    /// Runs a handler that is ours alone, and carries out its verdict.
    fn serve(&self, mut owned: Owned<'_, Entry>, ready: Ready, cx: &mut Context<'_>) -> Dispatched {
        if owned.arming.deactivation == Deactivation::OneShot {
            owned.arming.armed = None;
        }
        let interest = owned.state().interest();
        let token = cx.id.token;
        let verdict = contain(self.on_panic, || owned.ready(ready, cx));
        self.refuse_forked_child();
        let mut dispatched = Dispatched { handled: true, ..Dispatched::default() };
        let wanted = match verdict {
            Ok((Next::Rearm(interest), true)) => Wanted { armed: true, interest, poll: true },
            Ok((Next::Drained(interest), true)) => Wanted { armed: true, interest, poll: false },
            Ok((Next::Suspend, true)) => Wanted { armed: false, interest, poll: false },
            Ok((Next::Close, _)) => {
                self.evict(owned, token, Reason::Closed);
                return dispatched;
            }
            Ok((_, false)) => {
                self.evict(owned, token, Reason::DescriptorChanged);
                return dispatched;
            }
            Err(Panicked) => {
                self.evict(owned, token, Reason::Panicked);
                dispatched.panicked = true;
                return dispatched;
            }
        };
        // A failure has closed the handle and told its hook: nobody else is there to hear of it.
        if let Ok((rearms, again)) = self.settle(owned, token, wanted) {
            dispatched.rearms = rearms;
            dispatched.again = again.map(|flags| Event::new(flags, token.pack()));
        }
        dispatched
    }

    /// Runs a handler beside other threads. What it wants is asked of the slot as from outside, and
    /// settled by the last thread to leave; only polling again can be done at once.
    fn serve_shared(
        &self,
        shared: Shared<'_, Entry>,
        ready: Ready,
        cx: &mut Context<'_>,
    ) -> Dispatched {
        let token = cx.id.token;
        let verdict = contain(self.on_panic, || shared.ready_shared(ready, cx));
        self.refuse_forked_child();
        let mut dispatched = Dispatched { handled: true, ..Dispatched::default() };
        let current = shared.state().interest();
        let remove = |cause| Some(Request::Remove { cause, awaited: false });
        let request = match verdict {
            Ok((Next::Rearm(interest) | Next::Drained(interest), true)) if interest != current => {
                Some(Request::Interest(interest))
            }
            Ok((Next::Rearm(interest), true)) => {
                // Before we leave: a request to suspend is settled after the last of us has left, so
                // the kernel hears of it after this.
                let flags = shared.arming.deactivation.flags(Some(interest));
                match self.epoll.modify_raw(shared.fd, flags, token.pack()) {
                    Ok(()) => {
                        dispatched.rearms = 1;
                        None
                    }
                    // Nothing else makes the kernel refuse to poll again what it has polled.
                    Err(_) => remove(Cause::Swapped),
                }
            }
            Ok((Next::Drained(_), true)) => None,
            Ok((Next::Suspend, true)) => Some(Request::Suspend),
            Ok((Next::Close, _)) => remove(Cause::Verdict),
            Ok((_, false)) => remove(Cause::Swapped),
            Err(Panicked) => {
                dispatched.panicked = true;
                remove(Cause::Panic)
            }
        };
        if let (Some(request), Some(slot)) = (request, self.table.get(token.slot)) {
            // Deferred, because we are a sharer still.
            let _ = slot.request(token.generation, request);
        }
        if let Some(owned) = shared.leave() {
            let _ = self.settle_request(owned, token);
        }
        dispatched
    }

    /// Carries out what was asked of a slot that was at rest, and gives it back.
    ///
    /// # Errors
    /// The kernel's, after the handle has been closed.
    pub(crate) fn settle_request(&self, owned: Owned<'_, Entry>, token: Token) -> io::Result<()> {
        let state = owned.state();
        let (armed, interest) = (state.is_armed(), state.interest());
        let (_, again) = self.settle(owned, token, Wanted { armed, interest, poll: false })?;
        if let Some(flags) = again {
            self.hand_in(Event::new(flags, token.pack()));
        }
        Ok(())
    }

    /// Gives a slot back, or takes out the handle where that is asked for or the kernel refuses.
    fn settle(
        &self,
        owned: Owned<'_, Entry>,
        token: Token,
        wanted: Wanted,
    ) -> io::Result<(u32, Option<Flags>)> {
        let tell = |entry: &Entry, flags| self.epoll.modify_raw(entry.fd, flags, token.pack());
        match settle(owned, wanted, tell) {
            Settled::AtRest { rearms, again } => Ok((rearms, again)),
            Settled::Leaves { owned, why: Why::Asked(cause) } => {
                self.evict(owned, token, cause.into());
                Ok((0, None))
            }
            Settled::Leaves { owned, why: Why::Refused(error) } => {
                self.evict(owned, token, Reason::Failed(copy(&error)));
                Err(error)
            }
        }
    }

    /// A child that was forked in a handler and returns from it would go on as a thread of its parent's
    /// pool: it would change the parent's registrations and take its events.
    fn refuse_forked_child(&self) {
        if !self.process.is_current() {
            eprintln!("cabrank: a forked child must not return from its parent's handler");
            process::abort();
        }
    }

    /// Leaves an event to the thread that waits. For those who have none of the pool's roles to pass it on.
    fn hand_in(&self, event: Event) {
        self.handed_in.lock().push(event);
        self.waker.wake();
    }

    /// Adds what was handed in to the events of a wait. What finds no room makes the next wait return.
    fn collect(&self, events: &mut Events) {
        let mut handed_in = self.handed_in.lock();
        while let Some(event) = handed_in.pop() {
            if !events.push(event) {
                handed_in.push(event);
                self.waker.wake();
                break;
            }
        }
    }

    /// Takes the handle out of the kernel, tells the hook, drops the handler, frees the slot.
    fn evict(&self, owned: Owned<'_, Entry>, token: Token, reason: Reason) {
        let (mut entry, empty) = owned.take();
        // DEL before close (I7), but only of the descriptor that was registered: if the handler has
        // closed it, its number may be somebody else's by now. In a forked child the epoll instance
        // is the parent's, and so is the registration.
        let ours = contain(self.on_panic, || entry.has_its_descriptor()).unwrap_or(false);
        if ours && self.process.is_current() {
            // ENOENT or EBADF: closed behind our back, and so gone already.
            let _ = self.epoll.delete_raw(entry.fd);
        }
        // The hook's panic, or the destructor's, is contained like any other (I9).
        let id = HandleId { token, set: self.id };
        let _ = contain(self.on_panic, || entry.closed(id, reason));
        let _ = contain(self.on_panic, || drop(entry));
        if self.table.put_back(token.slot, empty) {
            self.announce_removal();
        }
    }
}

impl From<Cause> for Reason {
    fn from(cause: Cause) -> Reason {
        match cause {
            Cause::Removed => Reason::Removed,
            Cause::Verdict => Reason::Closed,
            Cause::Panic => Reason::Panicked,
            Cause::Shutdown => Reason::Shutdown,
            Cause::Swapped => Reason::DescriptorChanged,
        }
    }
}

/// The same kernel error for the hook and for the caller.
fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}
