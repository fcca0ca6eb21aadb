//! Who is there, and how a line reaches everybody.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use std::sync::Arc;

use cabrank::{Capacity, HandleId, Mailbox, SendError, WhenFull};

/// What a member is told. Cloned for each, so the text is shared.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Line(Arc<str>),
    /// The server is about to end.
    Bye,
}

/// A member that does not read misses the oldest lines, and nobody waits for it.
pub(crate) const MAILBOX: Capacity = Capacity::bounded(1_024, WhenFull::DropOldest);

#[derive(Debug, Default)]
pub(crate) struct Room {
    members: Mutex<HashMap<HandleId, Mailbox<Message>>>,
    lines: AtomicU64,
}

impl Room {
    pub(crate) fn join(&self, mailbox: Mailbox<Message>) {
        self.members().insert(mailbox.id(), mailbox);
    }

    pub(crate) fn leave(&self, id: HandleId) {
        self.members().remove(&id);
    }

    /// Tells everybody. Under the lock, so that all see the lines in the same order.
    pub(crate) fn say(&self, line: &str) {
        self.lines.fetch_add(1, Ordering::Relaxed);
        let line: Arc<str> = line.into();
        self.send(&Message::Line(line));
    }

    pub(crate) fn say_bye(&self) {
        self.send(&Message::Bye);
    }

    pub(crate) fn len(&self) -> usize {
        self.members().len()
    }

    pub(crate) fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    fn send(&self, message: &Message) {
        // Who is gone takes its leave by itself; the mailbox only refuses what comes after.
        self.members().retain(|_, mailbox| {
            !matches!(mailbox.send(message.clone()), Err(SendError::Closed(_)))
        });
    }

    fn members(&self) -> MutexGuard<'_, HashMap<HandleId, Mailbox<Message>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
