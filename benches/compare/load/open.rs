//! Open loop: requests fall due at times of their own, and latency counts from there. A request that finds no
//! free connection waits for one, and its latency grows meanwhile: nothing is left out because the server is
//! slow.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use cabrank::sys::epoll::Events;

use super::clients::{Clients, INPUT, Kind};
use super::random::Random;
use super::window::Window;

pub(crate) fn run(
    clients: &mut Clients,
    window: &mut Window,
    rate: f64,
    burst: usize,
) -> io::Result<()> {
    let mut events = Events::with_capacity(NonZeroUsize::new(256).unwrap());
    let mut free: VecDeque<usize> = (0..clients.count()).collect();
    // When the last request that had to wait for a connection got one.
    let mut starved = Duration::ZERO;
    let mut arrivals = Arrivals::new(rate, burst);
    let mut courtesy = Courtesy::default();
    // Plain requests that have not been answered.
    let mut awaited = 0_usize;
    loop {
        let now = window.now();
        if window.advance(now, clients)? {
            let mut overdue = arrivals.clone();
            while overdue.due <= now {
                window.left_over(overdue.due, now);
                overdue.next();
            }
        }
        loop {
            let now = window.now();
            if arrivals.due > now {
                break;
            }
            let Some(number) = free.pop_front() else { break };
            // The rest of a burst is late because sending takes time, and no connection is the server's
            // fault: neither is a fault of this loop.
            if arrivals.is_first_of_burst() {
                window.lagged(now.saturating_sub(arrivals.due.max(starved)));
            }
            let kind = clients.send(number, arrivals.due)?;
            awaited += usize::from(kind == Kind::Plain);
            arrivals.next();
        }
        let now = window.now();
        let until_due = arrivals.due.saturating_sub(now);
        let timeout = if free.is_empty() {
            window.rest(now)
        } else if awaited > 0 {
            // Polling, so that the time it takes to wake this thread is no part of the latency.
            courtesy.give_way();
            Duration::ZERO
        } else {
            // Waking by the clock is late, so the last stretch is polled.
            until_due.saturating_sub(LAST_STRETCH).min(window.rest(now))
        };
        clients.epoll.wait(&mut events, Some(timeout))?;
        for event in events.iter() {
            if event.data() == INPUT {
                return Ok(());
            }
            let number = event.data() as usize;
            if let Some(request) = clients.receive(number)? {
                let now = window.now();
                window.answered(request, now);
                awaited -= usize::from(request.kind == Kind::Plain);
                if free.is_empty() {
                    starved = now;
                }
                free.push_back(number);
            }
        }
    }
}

/// When requests fall due: bursts at the times of a Poisson process.
#[derive(Clone)]
struct Arrivals {
    random: Random,
    /// Mean time between two bursts, in seconds.
    gap: f64,
    burst: usize,
    /// How many of the present burst are still to come, this one included.
    left: usize,
    due: Duration,
}

impl Arrivals {
    fn new(rate: f64, burst: usize) -> Arrivals {
        let gap = burst as f64 / rate;
        Arrivals { random: Random::new(), gap, burst, left: burst, due: Duration::ZERO }
    }

    fn next(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.burst;
            self.due += Duration::from_secs_f64(self.random.exponential() * self.gap);
        }
    }

    fn is_first_of_burst(&self) -> bool {
        self.left == self.burst
    }
}

/// While this thread polls, a server thread that was put on its CPU would wait for a whole time slice: so it
/// goes first. Unless that is what it takes: one that polls too gives nothing back, and has to share the CPU
/// by the scheduler's rules.
#[derive(Default)]
struct Courtesy {
    /// How often it was abused.
    slices_lost: u32,
}

impl Courtesy {
    fn give_way(&mut self) {
        if self.slices_lost < ENOUGH {
            let start = Instant::now();
            thread::yield_now();
            self.slices_lost += u32::from(start.elapsed() > SLICE);
        }
    }
}

/// Longer than a handler, and no longer than the scheduler's shortest slice.
const SLICE: Duration = Duration::from_micros(700);

const ENOUGH: u32 = 8;

/// A bit more than the time by which a timed wait is usually late.
const LAST_STRETCH: Duration = Duration::from_micros(80);
