//! From the median to the tail: one line for each contestant.

use super::bars::{BARS, TOP, bottom, for_each, spoken};
use super::figures::Figure;
use super::markup::Markup;
use super::number;
use super::palette::Palette;
use super::results::Row;
use super::scale::Scale;
use super::svg::{self, Anchor, Mark, WIDTH};

/// A full mark at `body`, a hollow one at `tail`, each with a whisker from least to most.
pub(super) fn ranges(
    page: &mut Markup,
    palette: &Palette,
    caption: &str,
    rows: &[&Row],
    [body, tail]: [&Figure; 2],
) {
    let spreads = || rows.iter().filter_map(|row| Some((body.spread(row)?, tail.spread(row)?)));
    if spreads().next().is_none() {
        page.leaf("p", &[("class", &"note")], &format!("{caption}: no valid round."));
        return;
    }
    let scale = Scale::log(spreads().flat_map(|(body, tail)| [body.least, body.median, tail.most]));
    let x = |value: f64| BARS + 6.0 + scale.place(value) * (RIGHT - BARS - 6.0);
    let bottom = bottom(rows);
    let description = format!(
        "Latency, {} and {}: {}.",
        body.name,
        tail.name,
        spoken(rows, |row| {
            let (body, tail) = (body.median(row)?, tail.median(row)?);
            Some(format!("{} and {}", number::micros(body), number::micros(tail)))
        })
    );
    svg::chart(page, bottom + 24.0, caption, &description, |svg| {
        let mut free_from = 0.0;
        for tick in scale.ticks() {
            svg.line("grid", (x(tick), TOP - 4.0), (x(tick), bottom));
            let label = number::short_micros(tick);
            let half = label.chars().count() as f64 * 3.5;
            if x(tick) - half >= free_from {
                svg.label("tick", Anchor::Middle, (x(tick), bottom + 16.0), &label);
                free_from = x(tick) + half + 4.0;
            }
        }
        // The caption says of which requests.
        let percentile = |figure: &Figure| figure.name.rsplit(' ').next().unwrap_or_default();
        svg.label("name", Anchor::End, (BODY, 14.0), percentile(body));
        svg.label("name", Anchor::End, (WIDTH - 4.0, 14.0), percentile(tail));
        for_each(svg, palette, rows, |svg, row, y| {
            let (Some(low), Some(high)) = (body.spread(row), tail.spread(row)) else {
                svg.label("none", Anchor::Start, (BARS + 4.0, y + 4.0), "no valid round");
                return;
            };
            let [said_low, said_high] = [low, high].map(|spread| spread.say(number::micros));
            let (of_low, of_high) = (body.name, tail.name);
            svg.tip(&format!("{}: {of_low} {said_low}, {of_high} {said_high}", row.contestant));
            svg.line("range", (x(low.median), y), (x(high.median), y));
            svg.whisker(x(low.least), x(low.most), y);
            svg.whisker(x(high.least), x(high.most), y);
            svg.mark("mark", Mark::Circle, (x(low.median), y), "");
            svg.mark("hollow", Mark::Circle, (x(high.median), y), "");
            svg.label("tick", Anchor::End, (BODY, y + 4.0), &number::micros(low.median));
            svg.label("value", Anchor::End, (WIDTH - 4.0, y + 4.0), &number::micros(high.median));
        });
    });
}

/// Where the figure of the body ends, and the plot.
const BODY: f64 = WIDTH - 66.0;
const RIGHT: f64 = BODY - 60.0;
