//! All figures of a variant, folded away under its charts.

use super::figures::{
    BLOCKED_P50, BLOCKED_P99, CPU, Figure, INVOLUNTARY, LAG, MAX, P50, P90, P99, P999, RATE,
    VOLUNTARY, valid_rounds,
};
use super::markup::Markup;
use super::number;
use super::palette::Palette;
use super::results::{Row, Variant};
use super::statistics::Spread;

/// One table for each variant: each figure with its median, least to most below it, and the ratio to the
/// limit beside it.
pub(super) fn folded(page: &mut Markup, palette: &Palette, title: &str, variants: &[&Variant]) {
    page.element("details", &[], |details| {
        details.leaf("summary", &[], &format!("All figures: {title}"));
        for variant in variants {
            if variants.len() > 1 {
                details.leaf("h3", &[], &variant.label);
            }
            details.element("div", &[("class", &"wide")], |wide| table(wide, palette, variant));
        }
    });
}

fn table(page: &mut Markup, palette: &Palette, variant: &Variant) {
    let Some(limit) = variant.rows.first() else { return };
    let measured = |figure: &&Figure| variant.rows.iter().any(|row| figure.spread(row).is_some());
    let figures: Vec<&Figure> = FIGURES.iter().filter(measured).collect();
    let events = events(variant);
    page.element("table", &[], |table| {
        table.element("thead", &[], |head| heading(head, &figures, &events, limit));
        table.element("tbody", &[], |body| {
            for row in &variant.rows {
                let class = &palette.look(row.contestant).class;
                body.element("tr", &[("class", class)], |line| {
                    line.leaf("th", &[("scope", &"row")], row.contestant);
                    figures.iter().for_each(|figure| cells(line, figure, row, limit));
                    line.leaf("td", &[], &maybe(row.syscalls_per_request, number::figure));
                    for event in &events {
                        let count = row.perf.iter().find(|(name, _)| name == event);
                        line.leaf("td", &[], &maybe(count.map(|(_, n)| *n), number::figure));
                    }
                    line.leaf("td", &[], &maybe(LAG.median(row), LAG.format));
                    line.leaf("td", &[], &format!("{}/{}", valid_rounds(row), row.rounds.len()));
                    let requests = row.rounds.iter().flatten().map(|sample| sample.requests as f64);
                    line.leaf("td", &[], &number::count(requests.sum()));
                });
            }
        });
    });
}

fn heading(head: &mut Markup, figures: &[&Figure], events: &[&str], limit: &Row) {
    let column = |line: &mut Markup, name: &str| line.leaf("th", &[("scope", &"col")], name);
    head.element("tr", &[], |line| {
        column(line, "contestant");
        for figure in figures {
            column(line, figure.name);
            column(line, &format!("of {}", limit.contestant));
        }
        column(line, "syscalls/request");
        events.iter().for_each(|event| column(line, &format!("{event}/request")));
        column(line, LAG.name);
        column(line, "valid rounds");
        column(line, "requests");
    });
}

fn cells(line: &mut Markup, figure: &Figure, row: &Row, limit: &Row) {
    line.element("td", &[], |cell| {
        let spread = figure.spread(row);
        cell.text(&maybe(spread.map(|spread| spread.median), figure.format));
        if let Some(Spread { least, most, .. }) = spread.filter(|_| valid_rounds(row) > 1) {
            let range = format!("{} to {}", (figure.format)(least), (figure.format)(most));
            cell.leaf("small", &[], &range);
        }
    });
    let ratio = figure.ratio(row, limit).map(|ratio| ratio.median);
    line.leaf("td", &[("class", &"ratio")], &maybe(ratio, number::ratio));
}

/// The counters of `perf stat` that any row has.
fn events(variant: &Variant) -> Vec<&str> {
    let mut events: Vec<&str> = Vec::new();
    for (name, _) in variant.rows.iter().flat_map(|row| &row.perf) {
        if !events.contains(&name.as_str()) {
            events.push(name);
        }
    }
    events
}

fn maybe(value: Option<f64>, format: fn(f64) -> String) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "–".into(), format)
}

const FIGURES: [Figure; 11] =
    [RATE, CPU, VOLUNTARY, INVOLUNTARY, P50, P90, P99, P999, MAX, BLOCKED_P50, BLOCKED_P99];
