//! The measured window, and what is written down in it.

use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::clients::{Clients, Kind, Request};
use super::{Outcome, outcome, say};

pub(crate) struct Window {
    /// All times count from here.
    start: Instant,
    warm_up: Duration,
    length: Duration,
    stage: Stage,
    /// Requests answered in the window, and ever.
    requests: u64,
    answered: u64,
    latency: Histogram<u64>,
    blocked: Histogram<u64>,
    lag: Histogram<u64>,
}

#[derive(Clone, Copy)]
enum Stage {
    WarmUp,
    Open { since: Duration },
    Closed { after: Duration },
}

impl Window {
    pub(crate) fn new(warm_up: f64, seconds: f64) -> io::Result<Window> {
        let histogram = || {
            let longest = Duration::from_secs(60).as_nanos() as u64;
            Histogram::new_with_bounds(1, longest, 3).map_err(|e| io::Error::other(e.to_string()))
        };
        Ok(Window {
            start: Instant::now(),
            warm_up: Duration::from_secs_f64(warm_up),
            length: Duration::from_secs_f64(seconds),
            stage: Stage::WarmUp,
            requests: 0,
            answered: 0,
            latency: histogram()?,
            blocked: histogram()?,
            lag: histogram()?,
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Opens and closes the window when it is time, and tells those who listen. Whether it has just closed.
    pub(crate) fn advance(&mut self, now: Duration, clients: &Clients) -> io::Result<bool> {
        match self.stage {
            Stage::WarmUp if now >= self.warm_up => {
                say("begin")?;
                self.stage = Stage::Open { since: self.now() };
            }
            Stage::Open { since } if now >= since + self.length => {
                self.stage = Stage::Closed { after: now - since };
                say("end")?;
                // What is still under way counts if it has already taken longer than all others.
                for request in clients.under_way() {
                    let histogram = self.histogram(request.kind);
                    let age = nanoseconds(request.since, now);
                    if age > histogram.max() {
                        histogram.saturating_record(age);
                    }
                }
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    /// How long until there is something to do, at most.
    pub(crate) fn rest(&self, now: Duration) -> Duration {
        let change = match self.stage {
            Stage::WarmUp => self.warm_up,
            Stage::Open { since } => since + self.length,
            Stage::Closed { .. } => Duration::MAX,
        };
        change.saturating_sub(now).min(Duration::from_millis(100))
    }

    pub(crate) fn answered(&mut self, request: Request, now: Duration) {
        self.answered += 1;
        if let Stage::Open { .. } = self.stage {
            self.requests += 1;
            self.histogram(request.kind).saturating_record(nanoseconds(request.since, now));
        }
    }

    /// The load itself was late with a request.
    pub(crate) fn lagged(&mut self, lag: Duration) {
        if let Stage::Open { .. } = self.stage {
            self.lag.saturating_record(nanoseconds(Duration::ZERO, lag));
        }
    }

    /// A request that was due and could not even be sent before the window closed.
    pub(crate) fn left_over(&mut self, due: Duration, now: Duration) {
        self.latency.saturating_record(nanoseconds(due, now));
    }

    pub(crate) fn outcome(&self) -> Outcome {
        let seconds = match self.stage {
            Stage::Closed { after } => after.as_secs_f64(),
            // Whoever started the load is gone; nobody will read it.
            Stage::WarmUp | Stage::Open { .. } => 0.0,
        };
        let is_filled = |histogram: &&Histogram<u64>| !histogram.is_empty();
        Outcome {
            requests: self.requests,
            seconds,
            answered: self.answered,
            latency: outcome::latency(&self.latency),
            blocked: Some(&self.blocked).filter(is_filled).map(outcome::latency),
            lag_us: Some(&self.lag)
                .filter(is_filled)
                .map(|lag| lag.value_at_quantile(0.99) as f64 / 1e3),
        }
    }

    fn histogram(&mut self, kind: Kind) -> &mut Histogram<u64> {
        match kind {
            Kind::Plain => &mut self.latency,
            Kind::Blocks => &mut self.blocked,
        }
    }
}

fn nanoseconds(since: Duration, now: Duration) -> u64 {
    (now.saturating_sub(since).as_nanos() as u64).max(1)
}
