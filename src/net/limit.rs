//! How many connections a listener lets in, and how it hears that one has gone.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::handle_set::HandleSet;
use crate::handler::Context;
use crate::token::HandleId;

/// A place under a listener's connection limit. Keep it with the connection: when it is dropped the place
/// is free, and a listener that waits for one goes on accepting.
///
/// Drop it after the stream, so that the descriptor is free before the place is. A struct drops its fields in
/// the order of their declaration.
#[must_use = "dropping the permit frees the connection's place under the limit"]
pub struct Permit {
    gate: Arc<Gate>,
}

/// Counts the connections of one listener. One word says all, so that "there is no place, wake me" and "here
/// is one" cannot miss each other.
pub(crate) struct Gate {
    /// Connections times [`ONE`], [`HELD`] and [`WAITING`].
    word: AtomicUsize,
    limit: usize,
    /// Whom to tell of a free place. Set by the listener's first call, and needed only after it.
    listener: OnceLock<(HandleSet, HandleId)>,
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) pauses: AtomicU64,
}

impl Gate {
    pub(crate) fn new(limit: usize) -> Arc<Gate> {
        Arc::new(Gate {
            word: AtomicUsize::new(0),
            limit: limit.min(usize::MAX / ONE),
            listener: OnceLock::new(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
        })
    }

    /// Who asks for places, and is to be told of free ones.
    pub(crate) fn attend(&self, cx: &Context<'_>) {
        self.listener.get_or_init(|| (cx.handles().clone(), cx.id()));
    }

    /// A place, if there is one and the gate is not held. If not, the listener is called when one becomes
    /// free, also if that is before it has got itself suspended.
    pub(crate) fn take(self: &Arc<Gate>) -> Option<Permit> {
        let is_open = |word: usize| word & HELD == 0 && word / ONE < self.limit;
        let next = |word| Some(if is_open(word) { word + ONE } else { word | WAITING });
        // Acquire: pairs with the release in `give_back`; who has a place sees what was done before it was
        // left.
        let before = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, next);
        let before = before.unwrap_or_else(|word| word);
        is_open(before).then(|| Permit { gate: Arc::clone(self) })
    }

    /// Lets nobody in until it is released.
    pub(crate) fn hold(&self) {
        // Relaxed: guards no data.
        self.word.fetch_or(HELD, Ordering::Relaxed);
    }

    /// Undoes [`hold`](Gate::hold). The caller calls the listener.
    pub(crate) fn release(&self) {
        // Relaxed: guards no data, and calling the listener orders this before its call.
        self.word.fetch_and(!HELD, Ordering::Relaxed);
    }

    /// How many places are taken.
    pub(crate) fn open(&self) -> usize {
        // Relaxed: a glance.
        self.word.load(Ordering::Relaxed) / ONE
    }

    fn give_back(&self) {
        // Release: pairs with the acquire in `take`.
        let next = |word: usize| Some((word - ONE) & !WAITING);
        let before = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, next);
        let was_waiting = before.unwrap_or_else(|word| word) & WAITING != 0;
        if let Some((handles, id)) = self.listener.get().filter(|_| was_waiting) {
            // A listener that is gone needs no place.
            let _ = handles.notify(*id);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gate.give_back();
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("open", &self.gate.open()).finish_non_exhaustive()
    }
}

/// The listener has asked in vain, and is to be called.
const WAITING: usize = 1;
/// The listener is to accept nobody for now.
const HELD: usize = 2;
/// One connection.
const ONE: usize = 4;
