//! When to call whom: the deadlines of all handles, and the alarm that rings for the earliest.
//!
//! A deadline belongs to its handle's owner, who sets it without asking anybody: a handle is queued here
//! under *some* time, and it is enough that this time is not later than the deadline. Who moves its
//! deadline away, as every request on a connection with an idle time-out does, leaves the queue alone. When
//! the queued time comes the handle's next owner finds that there is time left and queues it again. So a
//! deadline that is moved a thousand times costs one place in the queue and one look when it comes up.
//!
//! The queue is a heap of four children to a node that knows the place of every handle: setting, moving and
//! cancelling take O(log n) steps, the earliest is found in O(1), and nothing is allocated once it has had
//! its largest size.

use std::mem;

use crate::sync::Mutex;
use crate::token::Token;

/// No deadline.
pub(crate) const NEVER: u64 = u64::MAX;

/// One handle's deadline, in the hands of its owner. Times are those of [`now`](crate::sync::now).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// When the handler is to be told.
    pub(crate) due: u64,
    /// When it comes up in the queue. In the past: it has come up, and an event is on its way.
    queued: u64,
    /// The queue may know of it, even while an event is on its way: it can be queued once more before that
    /// has arrived.
    is_known: bool,
}

impl Deadline {
    pub(crate) fn new(due: u64) -> Deadline {
        Deadline { due, queued: NEVER, is_known: false }
    }

    /// The event has arrived. Returns the deadline if it has passed at `now`; it is over then.
    pub(crate) fn arrived(&mut self, now: u64) -> Option<u64> {
        self.queued = NEVER;
        (self.due <= now).then(|| mem::replace(&mut self.due, NEVER))
    }

    /// The event has arrived while the handler was running. Returns whether the deadline has passed at
    /// `now`; then it is the caller's to send the event once more.
    pub(crate) fn arrived_early(&mut self, now: u64) -> bool {
        let passed = self.due <= now;
        self.queued = if passed { 0 } else { NEVER };
        passed
    }

    pub(crate) fn must_be_queued(&self) -> bool {
        self.due < self.queued
    }
}

/// Rings once, at the time it was last set to or later.
pub(crate) trait Alarm {
    fn set(&self, due: u64);
}

/// The queue of a handle set.
pub(crate) struct Deadlines<A> {
    queue: Mutex<Queue>,
    alarm: A,
}

struct Queue {
    heap: Heap,
    /// When the alarm rings: not later than the earliest of the heap.
    alarm: u64,
    /// What deadlines have been set to from outside, for the owner to fetch.
    asked: Vec<(Token, u64)>,
}

impl<A: Alarm> Deadlines<A> {
    pub(crate) fn new(alarm: A) -> Deadlines<A> {
        let queue = Queue { heap: Heap::default(), alarm: NEVER, asked: Vec::new() };
        Deadlines { queue: Mutex::new(queue), alarm }
    }

    /// Queues a handle, or moves it to the front, if its owner's deadline calls for it.
    pub(crate) fn look_after(&self, token: Token, deadline: &mut Deadline) {
        if deadline.must_be_queued() {
            let mut queue = self.queue.lock();
            queue.heap.set(token, deadline.due);
            deadline.queued = deadline.due;
            deadline.is_known = true;
            self.adjust(&mut queue);
        }
    }

    /// Takes a handle out that leaves the set.
    pub(crate) fn forget(&self, token: Token, deadline: &Deadline) {
        if deadline.is_known {
            // The alarm stays as it is: ringing for nobody once is cheaper than two system calls for each
            // deadline that is set and cancelled.
            self.queue.lock().heap.remove(token);
        }
    }

    /// The alarm has rung: hands out what has come up by `now`, for as long as it is taken. The alarm is
    /// set for what remains.
    pub(crate) fn ring(&self, now: u64, mut take: impl FnMut(Token) -> bool) {
        let mut queue = self.queue.lock();
        queue.alarm = NEVER;
        while let Some((due, token)) = queue.heap.first() {
            if due > now || !take(token) {
                break;
            }
            queue.heap.remove(token);
        }
        self.adjust(&mut queue);
    }

    /// Leaves a deadline for the handle's owner to fetch. The latest counts.
    pub(crate) fn ask(&self, token: Token, due: u64) {
        let mut queue = self.queue.lock();
        queue.asked.retain(|(other, _)| *other != token);
        queue.asked.push((token, due));
    }

    /// Fetches, or withdraws, what was asked.
    pub(crate) fn take_asked(&self, token: Token) -> Option<u64> {
        let mut queue = self.queue.lock();
        let at = queue.asked.iter().position(|(other, _)| *other == token)?;
        Some(queue.asked.swap_remove(at).1)
    }

    /// For models, which ring it.
    #[cfg(all(test, any(loom, shuttle)))]
    pub(crate) fn alarm(&self) -> &A {
        &self.alarm
    }

    /// Sets the alarm if something is due before it. Under the lock, so that the last to set it is the one
    /// who knows best.
    fn adjust(&self, queue: &mut Queue) {
        match queue.heap.first() {
            Some((due, _)) if due < queue.alarm => {
                queue.alarm = due;
                self.alarm.set(due);
            }
            _ => {}
        }
    }
}

/// A heap of four children to a node. Each slot is in it at most once.
#[derive(Default)]
struct Heap {
    nodes: Vec<(u64, Token)>,
    /// Where each slot is in `nodes`, by its number; `ABSENT` if it is not.
    places: Vec<u32>,
}

impl Heap {
    fn first(&self) -> Option<(u64, Token)> {
        self.nodes.first().copied()
    }

    /// Puts a handle in, or moves it. An earlier tenant of the slot must have been removed.
    fn set(&mut self, token: Token, due: u64) {
        let slot = token.slot as usize;
        if slot >= self.places.len() {
            self.places.resize(slot + 1, ABSENT);
        }
        let at = match self.places[slot] {
            ABSENT => {
                self.nodes.push((due, token));
                self.nodes.len() - 1
            }
            at => {
                debug_assert_eq!(
                    self.nodes[at as usize].1, token,
                    "a tenant left its deadline behind"
                );
                self.nodes[at as usize] = (due, token);
                at as usize
            }
        };
        let at = self.sift_up(at);
        self.sift_down(at);
    }

    fn remove(&mut self, token: Token) {
        let Some(&at) = self.places.get(token.slot as usize).filter(|at| **at != ABSENT) else {
            return;
        };
        let at = at as usize;
        if self.nodes[at].1 != token {
            return;
        }
        self.places[token.slot as usize] = ABSENT;
        self.nodes.swap_remove(at);
        if at < self.nodes.len() {
            let at = self.sift_up(at);
            self.sift_down(at);
        }
    }

    /// Moves a node towards the root until its parent is not later; where it is then.
    fn sift_up(&mut self, mut at: usize) -> usize {
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.nodes[parent].0 <= self.nodes[at].0 {
                break;
            }
            self.nodes.swap(at, parent);
            self.note_place(at);
            at = parent;
        }
        self.note_place(at);
        at
    }

    /// Moves a node towards the leaves until no child is earlier.
    fn sift_down(&mut self, mut at: usize) {
        loop {
            let children = CHILDREN * at + 1..(CHILDREN * at + 1 + CHILDREN).min(self.nodes.len());
            let Some(child) = children.min_by_key(|&child| self.nodes[child].0) else { break };
            if self.nodes[at].0 <= self.nodes[child].0 {
                break;
            }
            self.nodes.swap(at, child);
            self.note_place(at);
            at = child;
        }
        self.note_place(at);
    }

    fn note_place(&mut self, at: usize) {
        let slot = self.nodes[at].1.slot as usize;
        self.places[slot] = at as u32;
    }
}

/// Four children lie in one or two cache lines, and halve the height of a binary heap.
const CHILDREN: usize = 4;

const ABSENT: u32 = u32::MAX;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    fn token(slot: u32) -> Token {
        Token { slot, generation: 7 }
    }

    /// Remembers what it was set to.
    #[derive(Default)]
    struct Settings(RefCell<Vec<u64>>);

    impl Alarm for Settings {
        fn set(&self, due: u64) {
            self.0.borrow_mut().push(due);
        }
    }

    #[test]
    fn an_earlier_deadline_sets_the_alarm_and_a_later_one_does_not() {
        let deadlines = Deadlines::new(Settings::default());
        for (slot, due) in [(0, 500), (1, 900), (2, 300)] {
            deadlines.look_after(token(slot), &mut Deadline::new(due));
        }
        assert_eq!(*deadlines.alarm.0.borrow(), [500, 300]);
    }

    #[test]
    fn a_deadline_that_is_moved_away_leaves_the_queue_alone() {
        let deadlines = Deadlines::new(Settings::default());
        let mut deadline = Deadline::new(100);
        deadlines.look_after(token(0), &mut deadline);
        for due in [200, 300, 400] {
            deadline.due = due;
            deadlines.look_after(token(0), &mut deadline);
        }
        assert_eq!(*deadlines.alarm.0.borrow(), [100]);
        let mut up = Vec::new();
        deadlines.ring(150, |token| {
            up.push(token.slot);
            true
        });
        assert_eq!(up, [0]);
        assert_eq!(deadline.arrived(150), None, "there is time left");
        deadlines.look_after(token(0), &mut deadline);
        assert_eq!(*deadlines.alarm.0.borrow(), [100, 400]);
        assert_eq!(deadline.arrived(400), Some(400));
    }

    #[test]
    fn what_finds_no_taker_comes_up_again() {
        let deadlines = Deadlines::new(Settings::default());
        for slot in 0..3 {
            deadlines.look_after(token(slot), &mut Deadline::new(10));
        }
        let mut up = Vec::new();
        while up.len() < 3 {
            let rings = deadlines.alarm.0.borrow().len();
            let mut room = 1;
            deadlines.ring(10, |token| {
                let taken = room > 0;
                if taken {
                    up.push(token.slot);
                }
                room = 0;
                taken
            });
            let left = up.len() < 3;
            assert_eq!(deadlines.alarm.0.borrow().len() - rings, usize::from(left));
        }
    }

    #[test]
    fn the_latest_deadline_that_was_asked_for_counts_and_is_fetched_once() {
        let deadlines = Deadlines::new(Settings::default());
        for (slot, due) in [(0, 500), (1, 600), (0, 900)] {
            deadlines.ask(token(slot), due);
        }
        assert_eq!(deadlines.take_asked(token(0)), Some(900));
        assert_eq!(deadlines.take_asked(token(0)), None, "left behind");
        assert_eq!(deadlines.take_asked(token(1)), Some(600));
    }

    /// Against a sorted map, by a random walk.
    #[test]
    fn the_heap_agrees_with_a_sorted_map() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut heap = Heap::default();
        let mut model = BTreeMap::new();
        for _ in 0..50_000 {
            let slot = next(200) as u32;
            match next(4) {
                0 => {
                    heap.remove(token(slot));
                    model.remove(&slot);
                }
                1 => {
                    if let Some((due, first)) = heap.first() {
                        assert_eq!(model.values().min(), Some(&due));
                        heap.remove(first);
                        assert_eq!(model.remove(&first.slot), Some(due));
                    }
                }
                _ => {
                    let due = next(1_000);
                    heap.set(token(slot), due);
                    model.insert(slot, due);
                }
            }
            assert_eq!(heap.nodes.len(), model.len());
            assert_eq!(heap.first().map(|(due, _)| due), model.values().min().copied());
        }
    }
}
