//! Line charts with the names at the ends of the lines.

use super::labels;
use super::markup::Markup;
use super::palette::Look;
use super::scale::Scale;
use super::svg::{self, Anchor, WIDTH};

pub(super) struct Lines<'a> {
    pub(super) caption: String,
    pub(super) description: String,
    pub(super) x: Axis,
    pub(super) x_name: &'static str,
    pub(super) y: Axis,
    pub(super) series: Vec<Series<'a>>,
}

pub(super) struct Axis {
    pub(super) scale: Scale,
    pub(super) format: fn(f64) -> String,
}

pub(super) struct Series<'a> {
    pub(super) look: &'a Look,
    pub(super) points: Vec<Point>,
}

pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// If there is a mark at the point, what it tells.
    pub(super) tip: Option<String>,
}

impl Lines<'_> {
    pub(super) fn draw(&self, page: &mut Markup) {
        let drawn = || self.series.iter().filter(|series| !series.points.is_empty());
        if drawn().next().is_none() {
            page.leaf("p", &[("class", &"note")], &format!("{}: no valid round.", self.caption));
            return;
        }
        let bottom = TOP + (drawn().count() as f64 * LABEL_GAP).max(270.0);
        let area = Area { bottom, chart: self };
        svg::chart(page, bottom + 44.0, &self.caption, &self.description, |svg| {
            area.grid(svg);
            let ends: Vec<f64> = drawn().map(|series| area.end(series).1).collect();
            let labels = labels::spread(&ends, LABEL_GAP, TOP + 4.0, bottom - 4.0);
            // Ours last, that is above the others.
            let mut named: Vec<_> = drawn().zip(labels).collect();
            named.sort_by_key(|(series, _)| series.look.is_ours());
            for (series, label) in named {
                area.series(svg, series, label);
            }
        });
    }
}

struct Area<'a> {
    bottom: f64,
    chart: &'a Lines<'a>,
}

impl Area<'_> {
    fn grid(&self, svg: &mut Markup) {
        let (x, y) = (&self.chart.x, &self.chart.y);
        for tick in y.scale.ticks() {
            let at = self.y(tick);
            svg.line("grid", (LEFT, at), (RIGHT, at));
            svg.label("tick", Anchor::End, (LEFT - 6.0, at + 4.0), &(y.format)(tick));
        }
        let mut free_from = 0.0;
        for tick in x.scale.ticks() {
            let (at, label) = (self.x(tick), (x.format)(tick));
            svg.line("grid", (at, TOP), (at, self.bottom));
            let half = label.chars().count() as f64 * 3.5;
            if at - half >= free_from {
                svg.label("tick", Anchor::Middle, (at, self.bottom + 16.0), &label);
                free_from = at + half + 4.0;
            }
        }
        svg.line("axis", (LEFT, self.bottom), (RIGHT, self.bottom));
        let middle = (LEFT + RIGHT) / 2.0;
        svg.label("name", Anchor::Middle, (middle, self.bottom + 36.0), self.chart.x_name);
    }

    fn series(&self, svg: &mut Markup, series: &Series<'_>, label: f64) {
        let look = series.look;
        svg.element("g", &[("class", &format!("series {}", look.class))], |group| {
            let points: Vec<(f64, f64)> =
                series.points.iter().map(|point| self.at(point)).collect();
            group.polyline("line", &points);
            for point in &series.points {
                if let Some(tip) = &point.tip {
                    group.mark("mark", look.mark, self.at(point), tip);
                }
            }
            let end = self.end(series);
            group.line("leader", end, (RIGHT + 16.0, label));
            group.mark("mark", look.mark, (RIGHT + 22.0, label), look.name);
            group.label("label", Anchor::Start, (RIGHT + 30.0, label + 4.0), look.name);
        });
    }

    fn end(&self, series: &Series<'_>) -> (f64, f64) {
        series.points.last().map_or((RIGHT, self.bottom), |point| self.at(point))
    }

    fn at(&self, point: &Point) -> (f64, f64) {
        (self.x(point.x), self.y(point.y))
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.chart.x.scale.place(value) * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.chart.y.scale.place(value) * (self.bottom - TOP)
    }
}

const LEFT: f64 = 56.0;
const RIGHT: f64 = WIDTH - 122.0;
const TOP: f64 = 12.0;
const LABEL_GAP: f64 = 15.5;
