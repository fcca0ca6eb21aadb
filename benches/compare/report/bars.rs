//! Horizontal bars: how near to the limit, and what a request costs.

use super::figures::{CPU, INVOLUNTARY, RATE, VOLUNTARY};
use super::markup::Markup;
use super::number;
use super::palette::Palette;
use super::results::Row;
use super::scale::Scale;
use super::statistics::Spread;
use super::svg::{self, Anchor, WIDTH};

/// Requests per second as a ratio to the limit. The bar is the median, the whisker least to most.
pub(super) fn ratios(
    page: &mut Markup,
    palette: &Palette,
    caption: &str,
    rows: &[&Row],
    limit: &Row,
) {
    let ratio = |row: &Row| RATE.ratio(row, limit);
    let scale = Scale::from_zero(rows.iter().filter_map(|row| ratio(row)).map(|ratio| ratio.most));
    let x = |value: f64| BARS + scale.place(value) * (RATIO - 8.0 - BARS);
    let bottom = bottom(rows);
    let description = format!(
        "Requests per second as a ratio to {}: {}.",
        limit.contestant,
        spoken(rows, |row| ratio(row).map(|ratio| number::ratio(ratio.median)))
    );
    svg::chart(page, bottom + 24.0, caption, &description, |svg| {
        for tick in scale.ticks() {
            svg.line("grid", (x(tick), TOP - 4.0), (x(tick), bottom));
            svg.label("tick", Anchor::Middle, (x(tick), bottom + 16.0), &number::trimmed(tick));
        }
        svg.label("name", Anchor::End, (WIDTH - 4.0, 14.0), RATE.name);
        for_each(svg, palette, rows, |svg, row, y| {
            let (Some(ratio), Some(rate)) = (ratio(row), RATE.spread(row)) else {
                svg.label("none", Anchor::Start, (BARS + 4.0, y + 4.0), "no valid round");
                return;
            };
            let of_limit = format!("{} of {}", ratio.say(number::ratio), limit.contestant);
            svg.tip(&format!("{}: {}/s, {of_limit}", row.contestant, rate.say(RATE.format)));
            svg.bar("bar", x(0.0), x(ratio.median), y, 13.0);
            svg.whisker(x(ratio.least), x(ratio.most), y);
            svg.label("value", Anchor::Start, (RATIO, y + 4.0), &number::ratio(ratio.median));
            svg.label("tick", Anchor::End, (WIDTH - 4.0, y + 4.0), &number::count(rate.median));
        });
        svg.line("limit", (x(1.0), TOP - 4.0), (x(1.0), bottom));
        svg.label("limit", Anchor::Middle, (x(1.0), 14.0), &format!("{} = 1", limit.contestant));
    });
}

/// CPU time, switches and system calls per request, in columns of small bars.
pub(super) fn costs(page: &mut Markup, palette: &Palette, caption: &str, rows: &[&Row]) {
    let columns: Vec<Column> = [
        Column::of("CPU us", rows, |row| CPU.spread(row)),
        Column::of("voluntary sw.", rows, |row| VOLUNTARY.spread(row)),
        Column::of("involuntary sw.", rows, |row| INVOLUNTARY.spread(row)),
        Column::of("syscalls", rows, |row| Spread::of(row.syscalls_per_request)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if columns.is_empty() {
        return;
    }
    let width = (WIDTH - BARS) / columns.len() as f64;
    let placed = || columns.iter().enumerate().map(|(i, column)| (BARS + i as f64 * width, column));
    let bottom = bottom(rows);
    let description = format!(
        "CPU time per request in microseconds: {}.",
        spoken(rows, |row| CPU.median(row).map(number::figure))
    );
    svg::chart(page, bottom + 24.0, caption, &description, |svg| {
        for (left, column) in placed() {
            svg.line("axis", (left, TOP - 4.0), (left, bottom));
            svg.label("name", Anchor::Start, (left, 14.0), column.name);
        }
        for_each(svg, palette, rows, |svg, row, y| {
            for (left, column) in placed() {
                column.draw(svg, row, (left, y), width - VALUE);
            }
        });
    });
}

/// One kind of cost.
struct Column {
    name: &'static str,
    figure: fn(&Row) -> Option<Spread>,
    scale: Scale,
}

impl Column {
    /// None if nobody has the figure.
    fn of(name: &'static str, rows: &[&Row], figure: fn(&Row) -> Option<Spread>) -> Option<Column> {
        let medians: Vec<f64> =
            rows.iter().filter_map(|row| figure(row)).map(|spread| spread.median).collect();
        (!medians.is_empty()).then(|| Column { name, figure, scale: Scale::from_zero(medians) })
    }

    fn draw(&self, svg: &mut Markup, row: &Row, (left, y): (f64, f64), width: f64) {
        let Some(spread) = (self.figure)(row) else {
            svg.label("none", Anchor::Start, (left + 4.0, y + 4.0), "–");
            return;
        };
        let end = left + self.scale.place(spread.median) * width;
        svg.element("g", &[], |cell| {
            let said = spread.say(number::figure);
            cell.tip(&format!("{}: {} per request {said}", row.contestant, self.name));
            cell.bar("bar", left, end, y, 9.0);
            cell.label(
                "value",
                Anchor::Start,
                (end + 4.0, y + 4.0),
                &number::figure(spread.median),
            );
        });
    }
}

/// One group for each row, with its name at the left.
pub(super) fn for_each(
    svg: &mut Markup,
    palette: &Palette,
    rows: &[&Row],
    mut draw: impl FnMut(&mut Markup, &Row, f64),
) {
    for (index, row) in rows.iter().enumerate() {
        let look = palette.look(row.contestant);
        let y = TOP + (index as f64 + 0.5) * ROW;
        svg.element("g", &[("class", &format!("series {}", look.class))], |group| {
            group.mark("mark", look.mark, (8.0, y), "");
            group.label("label", Anchor::Start, (18.0, y + 4.0), look.name);
            draw(group, row, y);
        });
    }
}

/// For those who hear the chart.
pub(super) fn spoken(rows: &[&Row], value: impl Fn(&Row) -> Option<String>) -> String {
    let say = |row: &&Row| {
        let value = value(row).unwrap_or_else(|| "no valid round".into());
        format!("{} {value}", row.contestant)
    };
    rows.iter().map(say).collect::<Vec<_>>().join(", ")
}

pub(super) fn bottom(rows: &[&Row]) -> f64 {
    TOP + rows.len() as f64 * ROW
}

pub(super) const TOP: f64 = 26.0;
pub(super) const ROW: f64 = 22.0;
/// Where the bars begin, after the names.
pub(super) const BARS: f64 = 112.0;
/// Where the ratio stands.
const RATIO: f64 = WIDTH - 106.0;
/// What a column of small bars leaves for the figure.
const VALUE: f64 = 52.0;
