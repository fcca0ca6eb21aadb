//! The points of each regime.

use super::{Demand, Point, Points};
use crate::args::Options;
use crate::contestants::Contestant;
use crate::{limits, peers};

pub(super) fn saturation(options: &Options) -> Points {
    let tcp = Point {
        contestants: options.everybody(),
        counts_syscalls: true,
        ..Point::new("TCP", options)
    };
    let unix = Point { label: "Unix".into(), unix: true, ..tcp.clone() };
    let mut points = Points::from(vec![tcp, unix]);
    let why = "the kernel has no SO_REUSEPORT for Unix sockets";
    points.exclude(Contestant::Reuseport, "saturation on Unix sockets", why, |point| point.unix);
    points
}

pub(super) fn light(options: &Options) -> Points {
    let rate = options.rate.unwrap_or(5000.0);
    let mut point = Point::new(format!("{rate}/s"), options).at_rate(rate, 1);
    point.counts_syscalls = true;
    // To poll instead of sleeping is about this and nothing else.
    if options.named.is_empty() {
        point.contestants.push(Contestant::Spin);
    }
    vec![point].into()
}

pub(super) fn handler_time(options: &Options) -> Points {
    let point = |label: String, work_us| Point {
        work_us,
        counts_syscalls: true,
        ..Point::new(label, options)
    };
    let sweep: &[u64] = if options.quick { &[0, 20] } else { &[0, 1, 5, 20, 100] };
    let mut points: Vec<Point> = sweep
        .iter()
        .map(|&work| Point {
            axis: Some(("handler us", work as f64)),
            ..point(format!("{work} us"), work)
        })
        .collect();
    let is_eight = options.threads == Some(8);
    if !options.quick && !is_eight {
        let eight = |work| Point { threads: 8, ..point(format!("{work} us, 8 threads"), work) };
        points.extend([20, 100].map(eight));
    }
    points.into()
}

pub(super) fn blocking(options: &Options) -> Points {
    let point = |percent: u32, block_us: u64, rate: f64| {
        let time = block_us as f64 / 1e3;
        let mut point = Point::new(format!("{percent} % x {time} ms, {rate}/s"), options);
        point.threads = options.threads.unwrap_or(8);
        (point.block_percent, point.block_us) = (percent, block_us);
        point.at_rate(rate, 1)
    };
    if let Some((block_us, percent)) = options.blocking {
        return vec![point(percent, block_us, options.rate.unwrap_or(2000.0))].into();
    }
    if options.quick {
        return vec![point(10, 5000, 2000.0)].into();
    }
    let (few, some, many) =
        (point(1, 5000, 4000.0), point(10, 1000, 2000.0), point(50, 1000, 500.0));
    vec![few, some, point(10, 5000, 2000.0), many, point(50, 10_000, 500.0)].into()
}

pub(super) fn one_active(options: &Options) -> Points {
    let threads = options.threads.unwrap_or(8);
    let point = Point::new(format!("{threads} threads"), options);
    vec![Point { threads, connections: 1, counts_syscalls: true, ..point }].into()
}

pub(super) fn idle_crowd(options: &Options) -> Points {
    let crowd = if options.quick { 1000 } else { 10_000 };
    let alone = Point::new(format!("{} active", options.connections), options);
    let beside = Point {
        label: format!("{} beside {crowd} idle", alone.label),
        idle: crowd,
        ..alone.clone()
    };
    let needed = (crowd + options.connections + SPARE_DESCRIPTORS) as u64;
    let allowed = limits::descriptors();
    if allowed < needed {
        let left_out = format!(
            "idle-crowd with {crowd} idle connections needs {needed} descriptors, and the hard limit is {allowed} \
             (ulimit -Hn)."
        );
        return Points { points: vec![alone], left_out: vec![left_out] };
    }
    let mut points = Points::from(vec![alone, beside]);
    for peer in Contestant::ALL.into_iter().filter(|contestant| contestant.is_peer()) {
        if let Some(most) = peers::most_connections(peer.name()).filter(|most| *most < crowd) {
            let why = format!("it can have {most} connections at most");
            points.exclude(peer, &format!("idle-crowd beside {crowd} idle"), &why, |point| {
                point.idle > 0
            });
        }
    }
    points
}

pub(super) fn bursts(options: &Options) -> Points {
    let sizes: &[usize] = if options.quick { &[1, 16] } else { &[1, 2, 4, 8, 16, 32, 64] };
    let point = |&burst: &usize| {
        let mut point = Point::new(format!("{burst} at once"), options).at_rate(5000.0, burst);
        point.axis = Some(("burst", burst as f64));
        point.connections = point.connections.max(burst);
        point
    };
    sizes.iter().map(point).collect::<Vec<_>>().into()
}

pub(super) fn pool_size(options: &Options) -> Points {
    let sizes: &[usize] = if options.quick { &[2, 8] } else { &[1, 2, 4, 8, 16, 32, 64] };
    let point = |&threads: &usize| {
        let label = if threads == 1 { "1 thread".into() } else { format!("{threads} threads") };
        let axis = Some(("threads", threads as f64));
        Point { threads, axis, ..Point::new(label, options) }
    };
    let mut points = Points::from(sizes.iter().map(point).collect::<Vec<_>>());
    // One loop is one loop, whatever the size.
    for point in &mut points.points[1..] {
        point.borrows_limit = true;
        point.contestants.retain(|contestant| *contestant != Contestant::Bare);
    }
    let why = "it always has 2 workers, and tokio is measured with all sizes";
    points.exclude(Contestant::Tokio2, "pool-size", why, |_| true);
    points
}

pub(super) fn overload(options: &Options) -> Points {
    let demand = Demand::TimesPeak(1.3);
    // With less to do for the server it would be the load that is overloaded.
    let work_us = options.work_us.max(5);
    let label = format!("1.3 times the peak of {work_us} us handlers");
    vec![Point { demand, work_us, ..Point::new(label, options) }].into()
}

impl Point {
    /// The peak over TCP.
    fn new(label: impl Into<String>, options: &Options) -> Point {
        Point {
            label: label.into(),
            axis: None,
            unix: false,
            threads: options.threads.unwrap_or(4),
            connections: options.connections,
            idle: 0,
            demand: Demand::Peak,
            work_us: options.work_us,
            block_us: 0,
            block_percent: 0,
            contestants: options.contestants(),
            borrows_limit: false,
            counts_syscalls: false,
        }
    }

    fn at_rate(self, rate: f64, burst: usize) -> Point {
        Point { demand: Demand::Rate { rate, burst }, ..self }
    }
}

impl Points {
    /// Leaves a contestant out where it makes no sense, and says so if it was to take part.
    fn exclude(&mut self, who: Contestant, place: &str, why: &str, is_there: fn(&Point) -> bool) {
        let mut is_missed = false;
        for point in self.points.iter_mut().filter(|point| is_there(point)) {
            is_missed |= point.contestants.contains(&who);
            point.contestants.retain(|contestant| *contestant != who);
        }
        if is_missed {
            self.left_out.push(format!("{} in {place}: {why}.", who.name()));
        }
    }
}

impl From<Vec<Point>> for Points {
    fn from(points: Vec<Point>) -> Points {
        Points { points, left_out: Vec::new() }
    }
}

/// What a process has open besides its connections.
const SPARE_DESCRIPTORS: usize = 64;
