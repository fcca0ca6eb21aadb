//! The demultiplexing table: slots found by number in constant time, by any thread, while it grows.

use std::sync::OnceLock;

use crate::cell::{Empty, Slot, Vacated};
use crate::error::{Error, Result};
use crate::sync::Mutex;

/// Slots in segments that double in size and never move: a reader needs no lock, and growing stops
/// nobody. The memory is kept until the table is dropped.
pub(crate) struct Table<T> {
    segments: [OnceLock<Box<[Padded<T>]>>; SEGMENTS],
    free: Mutex<Free>,
    limit: usize,
}

/// One slot to a cache line, so that two threads in two handlers do not fight over one.
#[repr(align(64))]
struct Padded<T>(Slot<T>);

struct Free {
    /// Vacated slots, last in first out: the warmest memory first.
    slots: Vec<u32>,
    /// Slots handed out so far; those from here on have never been used.
    high: u32,
    /// Slots that have had as many tenants as there are generations, and get no more.
    worn_out: u32,
    closed: bool,
}

impl<T> Table<T> {
    pub(crate) fn new(limit: usize) -> Table<T> {
        Table {
            segments: [const { OnceLock::new() }; SEGMENTS],
            free: Mutex::new(Free { slots: Vec::new(), high: 0, worn_out: 0, closed: false }),
            limit: limit.min(MOST),
        }
    }

    /// A vacant slot for the caller alone, until it gives it back with [`put_back`](Table::put_back).
    pub(crate) fn take_free(&self) -> Result<(u32, &Slot<T>)> {
        let mut free = self.free.lock();
        if free.closed {
            return Err(Error::ShutDown);
        }
        let number = match free.slots.pop() {
            Some(number) => number,
            None if (free.high as usize) < self.limit => {
                let number = free.high;
                let (segment, _) = place(number);
                // Under the lock, but readers of other segments do not take it.
                self.segments[segment].get_or_init(|| {
                    (0..segment_length(segment)).map(|_| Padded(Slot::new())).collect()
                });
                // So that giving a slot back never allocates.
                let handed_out = free.high as usize + 1;
                let vacated = free.slots.len();
                free.slots.reserve(handed_out - vacated);
                free.high += 1;
                number
            }
            None => return Err(Error::TableFull { limit: self.limit }),
        };
        drop(free);
        Ok((number, self.get(number).expect("a free slot lies in a segment that exists")))
    }

    /// Ends a tenancy and gives the slot back. Both under the lock, so that who finds the tenant gone
    /// finds its slot free (I6).
    pub(crate) fn put_back(&self, number: u32, empty: Empty<'_, T>) -> Vacated {
        let mut free = self.free.lock();
        let mut vacated = empty.vacate();
        // Whoever closed the table waits for it to be empty.
        vacated.awaited |= free.closed;
        if vacated.worn_out {
            free.worn_out += 1;
        } else {
            free.slots.push(number);
        }
        vacated
    }

    /// The slot of that number, unless no such slot has ever been handed out.
    pub(crate) fn get(&self, number: u32) -> Option<&Slot<T>> {
        if number >= MOST as u32 {
            return None;
        }
        let (segment, index) = place(number);
        self.segments[segment].get()?.get(index).map(|padded| &padded.0)
    }

    /// Lets nobody in any more. Those who are in can still be found.
    pub(crate) fn close(&self) {
        self.free.lock().closed = true;
    }

    /// Whether nobody is let in any more. Who finds it open is found by whoever closes it later.
    pub(crate) fn is_closed(&self) -> bool {
        self.free.lock().closed
    }

    /// How many slots are in use.
    pub(crate) fn len(&self) -> usize {
        let free = self.free.lock();
        free.high as usize - free.slots.len() - free.worn_out as usize
    }

    /// Every slot that has ever been handed out.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u32, &Slot<T>)> {
        let high = self.free.lock().high;
        (0..high).filter_map(|number| Some((number, self.get(number)?)))
    }
}

/// Segment and index of a slot: segment `s` holds `FIRST << s` slots.
fn place(number: u32) -> (usize, usize) {
    let shifted = number + FIRST;
    let segment = (shifted / FIRST).ilog2();
    (segment as usize, (shifted - (FIRST << segment)) as usize)
}

fn segment_length(segment: usize) -> usize {
    (FIRST as usize) << segment
}

/// Slots in the first segment; small, because most pools are.
const FIRST: u32 = 64;

/// Enough for `MOST` slots.
const SEGMENTS: usize = 18;

/// The largest table, 2^24 - 64 slots: beyond any descriptor limit in use.
pub(crate) const MOST: usize = ((FIRST as usize) << SEGMENTS) - FIRST as usize;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::interest::Interest;

    #[test]
    fn every_number_has_its_own_place() {
        let mut expected = (0, 0);
        for number in 0..100_000 {
            assert_eq!(place(number), expected);
            expected.1 += 1;
            if expected.1 == segment_length(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        let (segment, index) = place(MOST as u32 - 1);
        assert_eq!((segment, index), (SEGMENTS - 1, segment_length(SEGMENTS - 1) - 1));
    }

    #[test]
    fn slots_come_back_and_the_limit_holds() {
        let table = Table::<()>::new(3);
        let numbers: Vec<u32> = (0..3).map(|_| table.take_free().unwrap().0).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert!(matches!(table.take_free(), Err(Error::TableFull { limit: 3 })));
        let slot = table.get(1).unwrap();
        table.put_back(1, slot.reserve(Interest::READABLE, true, false));
        assert_eq!(table.take_free().unwrap().0, 1);
        assert_eq!(table.len(), 3);
        table.close();
        assert!(matches!(table.take_free(), Err(Error::ShutDown)));
    }
}
