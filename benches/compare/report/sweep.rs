//! Variants that differ in one quantity, as lines over it.

use super::figures::{Figure, RATE};
use super::lines::{Axis, Lines, Point, Series};
use super::markup::Markup;
use super::number;
use super::palette::Palette;
use super::results::{Regime, Row, Variant};
use super::scale::Scale;
use super::statistics::Spread;

/// The variants along one axis, in order. A regime may have several: one for each number of threads, say.
pub(super) struct Sweep<'a> {
    /// What its variants have in common, "8 threads"; often nothing.
    pub(super) name: String,
    pub(super) axis: &'static str,
    pub(super) points: Vec<(f64, &'a Variant)>,
}

/// The sweeps of a regime, and the variants that belong to none: a single point is no sweep.
pub(super) fn split(regime: &Regime) -> (Vec<&Variant>, Vec<Sweep<'_>>) {
    let mut sweeps: Vec<Sweep<'_>> = Vec::new();
    for variant in &regime.variants {
        let Some((axis, x)) = variant.axis.filter(|(_, x)| x.is_finite()) else { continue };
        let name = common_label(&variant.label, x);
        let belongs = |sweep: &&mut Sweep<'_>| {
            let is_free = sweep.points.iter().all(|(known, _)| *known != x);
            (sweep.axis, &sweep.name) == (axis, &name) && is_free
        };
        match sweeps.iter_mut().find(belongs) {
            Some(sweep) => sweep.points.push((x, variant)),
            None => sweeps.push(Sweep { name, axis, points: vec![(x, variant)] }),
        }
    }
    sweeps.retain(|sweep| sweep.points.len() > 1);
    for sweep in &mut sweeps {
        sweep.points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    }
    let swept = |variant: &Variant| {
        sweeps
            .iter()
            .flat_map(|sweep| &sweep.points)
            .any(|(_, point)| std::ptr::eq(*point, variant))
    };
    let plain = regime.variants.iter().filter(|variant| !swept(variant)).collect();
    (plain, sweeps)
}

impl<'a> Sweep<'a> {
    pub(super) fn contestants(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for row in self.points.iter().flat_map(|(_, variant)| &variant.rows) {
            if !names.contains(&row.contestant) {
                names.push(row.contestant);
            }
        }
        names
    }

    /// Where the contestant was measured, with the limit there.
    pub(super) fn rows(&self, contestant: &str) -> Vec<(f64, &'a Row, &'a Row)> {
        let row = |(x, variant): &(f64, &'a Variant)| {
            let row = variant.rows.iter().find(|row| row.contestant == contestant)?;
            Some((*x, row, variant.rows.first()?))
        };
        self.points.iter().filter_map(row).collect()
    }

    /// "by handler us, 8 threads"
    pub(super) fn title(&self) -> String {
        let comma = if self.name.is_empty() { "" } else { ", " };
        format!("by {}{comma}{}", self.axis, self.name)
    }

    /// Medians, on a scale from zero unless the load at the last point is another than at the first.
    pub(super) fn draw_rates(&self, page: &mut Markup, palette: &Palette) {
        let series = self.series(palette, |row, _| RATE.spread(row));
        let scale = match series.first().is_some_and(|first| falls_far(&first.points)) {
            true => Scale::log(values(&series)),
            false => Scale::from_zero(values(&series)),
        };
        self.draw(page, RATE.name, Axis { scale, format: number::short }, series);
    }

    pub(super) fn draw_ratios(&self, page: &mut Markup, palette: &Palette) {
        let limit = self.points.first().and_then(|(_, variant)| variant.rows.first());
        let Some(limit) = limit.map(|limit| limit.contestant) else { return };
        let series = self.series(palette, |row, limit| RATE.ratio(row, limit));
        let y = Axis { scale: Scale::from_zero(values(&series)), format: number::trimmed };
        self.draw(page, &format!("{} as a ratio to {limit}", RATE.name), y, series);
    }

    pub(super) fn draw_latency(&self, page: &mut Markup, palette: &Palette, figure: &Figure) {
        let series = self.series(palette, |row, _| figure.spread(row));
        let y = Axis { scale: Scale::log(values(&series)), format: number::short_micros };
        self.draw(page, figure.name, y, series);
    }

    fn series<'p>(
        &self,
        palette: &'p Palette,
        value: impl Fn(&Row, &Row) -> Option<Spread>,
    ) -> Vec<Series<'p>> {
        let point = |(x, row, limit): (f64, &Row, &Row)| {
            let spread = value(row, limit)?;
            let at = format!("{} {}", self.axis, number::trimmed(x));
            let tip = format!("{}, {at}: {}", row.contestant, spread.say(number::figure));
            Some(Point { x, y: spread.median, tip: Some(tip) })
        };
        let series = |name: &'static str| Series {
            look: palette.look(name),
            points: self.rows(name).into_iter().filter_map(point).collect(),
        };
        self.contestants().into_iter().map(series).collect()
    }

    fn draw(&self, page: &mut Markup, what: &str, y: Axis, series: Vec<Series<'_>>) {
        let x: Vec<f64> = self.points.iter().map(|(x, _)| *x).collect();
        let caption = format!("{what} {}", self.title());
        Lines {
            description: format!(
                "{caption}, one line for each contestant. The figures are in the tables."
            ),
            caption,
            x: Axis { scale: Scale::of_sweep(&x), format: number::trimmed },
            x_name: self.axis,
            y,
            series,
        }
        .draw(page);
    }
}

fn values(series: &[Series<'_>]) -> Vec<f64> {
    series.iter().flat_map(|series| &series.points).map(|point| point.y).collect()
}

/// To less than a fifth: the lines would meet at the bottom.
fn falls_far(points: &[Point]) -> bool {
    let ends = points.first().zip(points.last());
    ends.is_some_and(|(first, last)| last.y > 0.0 && last.y < first.y / 5.0)
}

/// The label without the part that says where on the axis the variant lies: "20 us, 8 threads" at 20 gives
/// "8 threads".
fn common_label(label: &str, x: f64) -> String {
    let x = number::trimmed(x);
    let says_x = |part: &str| {
        let numbers = part.split(|c: char| !c.is_ascii_digit() && c != '.');
        numbers.into_iter().any(|number| number == x)
    };
    let parts: Vec<&str> = label.split(", ").collect();
    let place = parts.iter().position(|part| says_x(part));
    let others = parts.iter().enumerate().filter(|(index, _)| Some(*index) != place);
    others.map(|(_, part)| *part).collect::<Vec<_>>().join(", ")
}
