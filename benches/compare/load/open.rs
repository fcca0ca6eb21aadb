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
    let mut sender = Sender {
        free: (0..clients.count()).collect(),
        arrivals: Arrivals::new(rate, burst),
        excused: Duration::ZERO,
        awaited: 0,
    };
    let mut courtesy = Courtesy::default();
    loop {
        let now = window.now();
        if window.advance(now, clients)? {
            sender.arrivals.overdue(now).for_each(|due| window.left_over(due, now));
        }
        sender.send_due(clients, window)?;
        let now = window.now();
        let timeout = if sender.free.is_empty() {
            window.rest(now)
        } else if sender.awaited > 0 {
            // Polling, so that the time it takes to wake this thread is no part of the latency.
            courtesy.give_way();
            Duration::ZERO
        } else {
            // Waking by the clock is late, so the last stretch is polled.
            let until_due = sender.arrivals.due.saturating_sub(now);
            until_due.saturating_sub(sender.arrivals.last_stretch()).min(window.rest(now))
        };
        clients.epoll.wait(&mut events, Some(timeout))?;
        for event in events.iter() {
            if event.data() == INPUT {
                return Ok(());
            }
            sender.receive(event.data() as usize, clients, window)?;
            // Answers can wait, they have their time; requests cannot.
            sender.send_due(clients, window)?;
        }
    }
}

struct Sender {
    /// Connections without a request under way.
    free: VecDeque<usize>,
    arrivals: Arrivals,
    /// Until then requests could not have been sent, as there was no connection. What comes after that is lag.
    excused: Duration,
    /// Plain requests that have not been answered.
    awaited: usize,
}

impl Sender {
    fn send_due(&mut self, clients: &mut Clients, window: &mut Window) -> io::Result<()> {
        let mut now = window.now();
        while self.arrivals.due <= now {
            let Some(number) = self.free.pop_front() else { break };
            // The others of a burst follow at once, and would hide the lag of the first.
            if self.arrivals.is_first_of_burst() {
                window.lagged(now.saturating_sub(self.arrivals.due.max(self.excused)));
            }
            let kind = clients.send(number, self.arrivals.due)?;
            self.awaited += usize::from(kind == Kind::Plain);
            self.arrivals.advance();
            now = window.now();
        }
        Ok(())
    }

    fn receive(
        &mut self,
        number: usize,
        clients: &mut Clients,
        window: &mut Window,
    ) -> io::Result<()> {
        if let Some(request) = clients.receive(number)? {
            let now = window.now();
            window.answered(request, now);
            self.awaited -= usize::from(request.kind == Kind::Plain);
            if self.free.is_empty() {
                self.excused = now;
            }
            self.free.push_back(number);
        }
        Ok(())
    }
}

/// When requests fall due: single ones by a Poisson process, bursts at more even distances.
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

    fn advance(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.burst;
            let gap = if self.burst == 1 {
                self.random.exponential()
            } else {
                // Never so soon that a burst meets the remains of the last one, never in step with a clock.
                0.5 + self.random.uniform()
            };
            self.due += Duration::from_secs_f64(gap * self.gap);
        }
    }

    fn is_first_of_burst(&self) -> bool {
        self.left == self.burst
    }

    /// A bit more than the time by which a timed wait is usually late: the longer a CPU has slept the later it
    /// is.
    fn last_stretch(&self) -> Duration {
        Duration::from_secs_f64((self.gap / 4.0).clamp(80e-6, 500e-6))
    }

    /// The times of all requests up to now that have not been sent.
    fn overdue(&self, now: Duration) -> impl Iterator<Item = Duration> + use<> {
        let mut arrivals = self.clone();
        std::iter::from_fn(move || {
            let due = arrivals.due;
            arrivals.advance();
            Some(due).filter(|due| *due <= now)
        })
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
