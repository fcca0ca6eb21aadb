//! Runs the rounds of a regime, interleaved.

use std::time::Duration;

use crate::address::Address;
use crate::args::Options;
use crate::connection::Cost;
use crate::contestants::{Contestant, Setup};
use crate::counting::{Counting, split_supported};
use crate::load::{Load, Pace};
use crate::measure::{Laboratory, Measured, SocketPath, is_spoiled};
use crate::progress::Progress;
use crate::regimes::{Demand, Plan, Point};
use crate::results::{Regime, Row, Sample, Variant};

pub(crate) struct Runner<'a> {
    options: &'a Options,
    laboratory: Laboratory,
    progress: Progress,
    /// How system calls are counted, if they are.
    syscalls: Option<Counting>,
    /// How the events of `--perf` are counted, if they are.
    events: Option<Counting>,
    skipped: Vec<String>,
    /// How often one of our own contestants could not be measured.
    failures: usize,
}

/// A point and what is known about it.
struct Course {
    regime: &'static str,
    point: Point,
    rows: Vec<(Contestant, Row)>,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(options: &'a Options) -> Result<Runner<'a>, String> {
        let mut runner = Runner {
            options,
            laboratory: Laboratory::new()?,
            progress: Progress::new(),
            syscalls: None,
            events: None,
            skipped: Vec::new(),
            failures: 0,
        };
        if options.syscalls {
            match Counting::of_syscalls() {
                Ok(counting) => runner.syscalls = Some(counting),
                Err(why) => runner.skip(format!("System calls were not counted: {why}.")),
            }
        }
        if options.perf {
            runner.choose_events();
        }
        Ok(runner)
    }

    /// Builds what is to be built, and says how long it all takes.
    pub(crate) fn prepare(&mut self, plans: &mut [Plan]) {
        for peer in Contestant::ALL.into_iter().filter(|contestant| contestant.is_peer()) {
            if plans.iter().any(|plan| plan.has(peer)) {
                self.progress.say(&format!("Building {}.", peer.name()));
                if let Err(why) = self.laboratory.build(peer) {
                    self.skip(format!("{why}."));
                    plans.iter_mut().for_each(|plan| plan.exclude(peer));
                }
            }
        }
        if self.options.quick && self.options.named.is_empty() {
            self.skip("The C++ peers take part in a quick run only if they are named.".into());
        }
        let expected = plans.iter().map(|plan| plan.expected_seconds(self.options)).sum();
        self.progress.expect(expected);
    }

    pub(crate) fn run(&mut self, plan: Plan) -> Regime {
        let Plan { name, question, focus, rounds, points, left_out } = plan;
        left_out.into_iter().for_each(|sentence| self.skip(sentence));
        let mut courses = Vec::with_capacity(points.len());
        for point in points {
            let label = point.label.clone();
            match self.settle(point) {
                Ok(point) => courses.push(Course::new(name, point)),
                Err(error) => {
                    self.failures += 1;
                    self.skip(format!("{name}, {label}: {error}."));
                }
            }
        }
        for round in 0..rounds {
            let stage = format!("{name}: round {} of {rounds}", round + 1);
            for course in &mut courses {
                self.round(course, round, &stage);
            }
        }
        for course in &mut courses {
            self.count_syscalls(course);
            self.count_events(course);
        }
        Regime { name, question, focus, variants: self.variants(courses) }
    }

    /// The points that have a limit to compare with.
    fn variants(&mut self, courses: Vec<Course>) -> Vec<Variant> {
        let mut variants: Vec<Variant> = Vec::new();
        for Course { regime, point, rows } in courses {
            let mut rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
            if point.borrows_limit {
                let limit = variants.first().and_then(|variant| variant.rows.first());
                rows.splice(..0, limit.map(copy));
            }
            if rows.first().is_some_and(|row| row.contestant == Contestant::Bare.name()) {
                variants.push(Variant { label: point.label, axis: point.axis, rows });
            } else {
                let why = "there is no figure of bare to compare with";
                self.skip(format!("{regime}, {}: {why}.", point.label));
            }
        }
        variants
    }

    /// Takes those events that this machine has.
    fn choose_events(&mut self) {
        match split_supported(&EVENTS) {
            Ok((supported, unsupported)) => {
                if !unsupported.is_empty() {
                    let names = unsupported.join(", ");
                    self.skip(format!("perf stat cannot count these events here: {names}."));
                }
                self.events =
                    Some(Counting::Perf(supported)).filter(|_| unsupported.len() < EVENTS.len());
            }
            Err(why) => self.skip(format!("--perf has been left out: {why}.")),
        }
    }

    /// One round of one point.
    fn round(&mut self, course: &mut Course, round: usize, stage: &str) {
        for contestant in course.order(round) {
            let point = &course.point.clone();
            self.progress.show(stage, &format!("{}, {}", point.label, contestant.name()));
            match self.sample(contestant, point) {
                Ok(sample) => course.row(contestant).rounds.push(sample),
                Err(error) => {
                    self.failures += usize::from(!contestant.is_peer());
                    self.skip(course.sentence(contestant, &error));
                    course.drop_out(contestant);
                }
            }
            let seconds = self.options.seconds;
            self.progress.advance(point.expected_seconds(seconds, self.options));
        }
    }

    fn count_syscalls(&mut self, course: &mut Course) {
        let Some(counting) = self.syscalls.take() else { return };
        if course.point.counts_syscalls {
            let stage = format!("{}: system calls", course.regime);
            for (contestant, counts) in self.count(course, &stage, COUNTED_SECONDS, &counting) {
                course.row(contestant).syscalls_per_request = counts.first().map(|(_, n)| *n);
            }
        }
        self.syscalls = Some(counting);
    }

    fn count_events(&mut self, course: &mut Course) {
        let Some(counting) = self.events.take() else { return };
        let stage = format!("{}: perf stat", course.regime);
        let seconds = self.options.seconds;
        for (contestant, counts) in self.count(course, &stage, seconds, &counting) {
            course.row(contestant).perf = counts;
        }
        self.events = Some(counting);
    }

    /// One more round, in which something is counted per request.
    fn count(
        &mut self,
        course: &Course,
        stage: &str,
        seconds: f64,
        counting: &Counting,
    ) -> Vec<(Contestant, Vec<(String, f64)>)> {
        let mut counted = Vec::new();
        for contestant in course.order(0) {
            let point = &course.point;
            self.progress.show(stage, &format!("{}, {}", point.label, contestant.name()));
            match self.measure(contestant, point, seconds, Some(counting)) {
                Ok(measured) => counted.push((contestant, measured.counts)),
                Err(error) => {
                    self.skip(course.sentence(contestant, &format!("not counted: {error}")))
                }
            }
            self.progress.advance(point.expected_seconds(seconds, self.options) + ATTACHING);
        }
        counted
    }

    /// Measures once, and again if the generator was late; `None` if it was late again.
    fn sample(&self, contestant: Contestant, point: &Point) -> Result<Option<Sample>, String> {
        let measure = || self.measure(contestant, point, self.options.seconds, None);
        let first = measure()?.sample;
        if !is_spoiled(&first) {
            return Ok(Some(first));
        }
        let second = measure()?.sample;
        Ok(Some(second).filter(|sample| !is_spoiled(sample)))
    }

    fn measure(
        &self,
        contestant: Contestant,
        point: &Point,
        seconds: f64,
        counting: Option<&Counting>,
    ) -> Result<Measured, String> {
        let socket = point.unix.then(SocketPath::new);
        let cost = Cost {
            work: Duration::from_micros(point.work_us),
            block: Duration::from_micros(point.block_us),
        };
        let unix = socket.as_ref().map(|socket| socket.path().into());
        let setup = Setup { threads: point.threads, cost, unix };
        self.laboratory.measure(contestant, &setup, &self.load(point, seconds), counting)
    }

    fn load(&self, point: &Point, seconds: f64) -> Load {
        let Options { size, warm_up, .. } = *self.options;
        let pace = match point.demand {
            Demand::Peak | Demand::TimesPeak(_) => Pace::Closed,
            Demand::Rate { rate, burst } => Pace::Open { rate, burst },
        };
        Load {
            address: Address::Unix("".into()),
            connections: point.connections,
            idle: point.idle,
            size,
            warm_up,
            seconds,
            pace,
            block_percent: point.block_percent,
        }
    }

    /// Finds out what a demand that depends on the peak comes to.
    fn settle(&mut self, mut point: Point) -> Result<Point, String> {
        if let Demand::TimesPeak(times) = point.demand {
            self.progress.show("overload: how much is the peak", Contestant::Bare.name());
            let seconds = self.options.seconds;
            let peak = self.measure(Contestant::Bare, &point, seconds, None)?.sample;
            let rate = (times * peak.requests_per_second).round();
            point.label = format!("{}, {rate}/s", point.label);
            point.demand = Demand::Rate { rate, burst: 1 };
        }
        Ok(point)
    }

    pub(crate) fn failures(&self) -> usize {
        self.failures
    }

    /// A sentence for each thing that was left out.
    pub(crate) fn finish(self) -> Vec<String> {
        self.skipped
    }

    fn skip(&mut self, sentence: String) {
        self.progress.say(&sentence);
        self.skipped.push(sentence);
    }
}

impl Course {
    fn new(regime: &'static str, point: Point) -> Course {
        let row = |contestant: Contestant| Row {
            contestant: contestant.name(),
            rounds: Vec::new(),
            syscalls_per_request: None,
            perf: Vec::new(),
        };
        let rows = point.contestants.iter().map(|&contestant| (contestant, row(contestant)));
        Course { regime, rows: rows.collect(), point }
    }

    /// Each round begins with another, for the first after a pause may be better or worse off, and goes the
    /// other way round than the last, so that nobody always comes after the same one.
    fn order(&self, round: usize) -> Vec<Contestant> {
        let mut order: Vec<Contestant> = self.rows.iter().map(|(name, _)| *name).collect();
        let places = order.len().max(1);
        order.rotate_left(round % places);
        if round % 2 == 1 {
            order.reverse();
        }
        order
    }

    fn row(&mut self, contestant: Contestant) -> &mut Row {
        let row = self.rows.iter_mut().find(|(name, _)| *name == contestant);
        &mut row.expect("has not dropped out").1
    }

    fn sentence(&self, contestant: Contestant, error: &str) -> String {
        format!("{} in {}, {}: {error}.", contestant.name(), self.regime, self.point.label)
    }

    fn drop_out(&mut self, contestant: Contestant) {
        self.rows.retain(|(name, _)| *name != contestant);
    }
}

/// What `--perf` asks for.
const EVENTS: [&str; 13] = [
    "task-clock",
    "context-switches",
    "cpu-migrations",
    "page-faults",
    "raw_syscalls:sys_enter",
    "sched:sched_wakeup",
    "cycles",
    "instructions",
    "branch-misses",
    "cache-references",
    "cache-misses",
    "L1-dcache-load-misses",
    "dTLB-load-misses",
];

/// Seconds for which system calls are counted.
pub(crate) const COUNTED_SECONDS: f64 = 0.3;

/// Seconds that it takes to attach perf.
pub(crate) const ATTACHING: f64 = 0.25;

fn copy(row: &Row) -> Row {
    Row { rounds: row.rounds.clone(), perf: row.perf.clone(), ..*row }
}
