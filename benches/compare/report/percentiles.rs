//! Latency by percentile, spread towards 100 %: where the tail begins and how far it goes.

use super::lines::{Axis, Lines, Point, Series};
use super::markup::Markup;
use super::number;
use super::palette::Palette;
use super::results::{Latency, Row, Sample};
use super::scale::Scale;
use super::statistics::Spread;

/// One curve for each row: at each percentile the median over the rounds.
pub(super) fn curves(
    page: &mut Markup,
    palette: &Palette,
    caption: &str,
    rows: &[&Row],
    of: fn(&Sample) -> Option<&Latency>,
) {
    let curves: Vec<(&Row, Vec<(f64, f64)>)> =
        rows.iter().map(|row| (*row, median_curve(row, of))).collect();
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let series = curves.iter().map(|(row, curve)| Series {
        look: palette.look(row.contestant),
        points: curve.iter().map(|point| self::point(row, *point)).collect(),
    });
    Lines {
        caption: caption.into(),
        description:
            "Latency by percentile, one curve for each contestant. The figures are in the table."
                .into(),
        x: Axis {
            scale: Scale::tail(points().map(|(percentile, _)| *percentile)),
            format: number::percentile,
        },
        x_name: "of the requests",
        y: Axis {
            scale: Scale::log(points().map(|(_, value)| *value)),
            format: number::short_micros,
        },
        series: series.collect(),
    }
    .draw(page);
}

fn point(row: &Row, (percentile, value): (f64, f64)) -> Point {
    let tip = || {
        let percentile = number::percentile(percentile);
        format!("{}: {percentile} within {}", row.contestant, number::micros(value))
    };
    let marked = MARKED.iter().any(|marked| (percentile - marked).abs() < 1e-6);
    Point { x: percentile, y: value, tip: marked.then(tip) }
}

/// At the percentiles of the first round and those that get a mark.
fn median_curve(row: &Row, of: fn(&Sample) -> Option<&Latency>) -> Vec<(f64, f64)> {
    let curve = |sample: &Sample| Some(clean(&of(sample)?.curve, sample.requests));
    let rounds = row.rounds.iter().flatten().filter_map(curve);
    let rounds: Vec<Vec<(f64, f64)>> = rounds.filter(|curve| !curve.is_empty()).collect();
    let Some(first) = rounds.first() else { return Vec::new() };
    let (from, to) = (first[0].0, first[first.len() - 1].0);
    // The end is 100 %, so what lies just before it may be beyond what the requests can tell.
    let told = first.iter().rev().map(|(percentile, _)| *percentile).find(|known| *known < 100.0);
    let told = told.unwrap_or(to);
    let marked = MARKED.into_iter().filter(|marked| (from..=told).contains(marked));
    let mut percentiles: Vec<f64> =
        first.iter().map(|(percentile, _)| *percentile).chain(marked).collect();
    percentiles.sort_by(f64::total_cmp);
    percentiles.dedup_by(|a, b| (*a - *b).abs() < 1e-6);
    let median = |percentile: f64| {
        let values = rounds.iter().map(|curve| interpolated(curve, percentile));
        Some((percentile, Spread::of(values)?.median))
    };
    percentiles.into_iter().filter_map(median).collect()
}

/// In order, and without the percentiles that so few requests cannot tell from 100.
fn clean(curve: &[(f64, f64)], requests: u64) -> Vec<(f64, f64)> {
    let finest = 100.0 - 100.0 / requests.max(1) as f64;
    let is_told = |percentile: f64| (0.0..=finest).contains(&percentile) || percentile == 100.0;
    let points = curve.iter().copied();
    let mut curve: Vec<(f64, f64)> =
        points.filter(|(percentile, value)| is_told(*percentile) && value.is_finite()).collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    curve
}

/// Between the neighbours; beyond the ends, the end.
fn interpolated(curve: &[(f64, f64)], percentile: f64) -> f64 {
    let after = curve.partition_point(|(known, _)| *known < percentile);
    match (after.checked_sub(1).map(|before| curve[before]), curve.get(after)) {
        (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (percentile - x0) / (x1 - x0),
        (Some((_, y)), None) => y,
        (None, Some((_, y))) => *y,
        (None, None) => f64::NAN,
    }
}

const MARKED: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];
