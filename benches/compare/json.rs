//! Everything that was measured, as JSON.

use std::fmt::Write;

use crate::results::{Focus, Latency, Regime, Results, Row, Sample, Variant};

pub(crate) fn render(results: &Results) -> String {
    let machine = results.machine.iter().map(|(name, value)| (name.as_str(), Json::text(value)));
    let mut text = String::new();
    object([
        ("machine", object(machine)),
        ("regimes", array(results.regimes.iter().map(regime))),
        ("skipped", array(results.skipped.iter().map(Json::text))),
    ])
    .write(&mut text, 0);
    text.push('\n');
    text
}

fn regime(regime: &Regime) -> Json {
    let focus = match regime.focus {
        Focus::Peak => "peak",
        Focus::Latency => "latency",
    };
    object([
        ("name", Json::text(regime.name)),
        ("question", Json::text(regime.question)),
        ("focus", Json::text(focus)),
        ("variants", array(regime.variants.iter().map(variant))),
    ])
}

fn variant(variant: &Variant) -> Json {
    let axis = variant.axis.map_or(Json::Null, |(name, at)| {
        object([("name", Json::text(name)), ("at", Json::Number(at))])
    });
    object([
        ("label", Json::text(&variant.label)),
        ("axis", axis),
        ("contestants", array(variant.rows.iter().map(row))),
    ])
}

fn row(row: &Row) -> Json {
    let perf = row.perf.iter().map(|(event, count)| (event.as_str(), Json::Number(*count)));
    object([
        ("name", Json::text(row.contestant)),
        ("syscalls_per_request", Json::optional(row.syscalls_per_request)),
        ("perf_per_request", object(perf)),
        // A round that was discarded is null.
        ("rounds", array(row.rounds.iter().map(|round| round.as_ref().map_or(Json::Null, sample)))),
    ])
}

fn sample(sample: &Sample) -> Json {
    object([
        ("requests", Json::Number(sample.requests as f64)),
        ("requests_per_second", Json::Number(sample.requests_per_second)),
        ("cpu_us_per_request", Json::Number(sample.cpu_us_per_request)),
        ("voluntary_switches_per_request", Json::Number(sample.voluntary_per_request)),
        ("involuntary_switches_per_request", Json::Number(sample.involuntary_per_request)),
        ("latency_us", latency(&sample.latency)),
        ("blocked_latency_us", sample.blocked.as_ref().map_or(Json::Null, latency)),
        ("generator_lag_p99_us", Json::optional(sample.generator_lag_us)),
    ])
}

fn latency(latency: &Latency) -> Json {
    let point = |&(percentile, value)| array([Json::Number(percentile), Json::Number(value)]);
    object([
        ("p50", Json::Number(latency.p50)),
        ("p90", Json::Number(latency.p90)),
        ("p99", Json::Number(latency.p99)),
        ("p99.9", Json::Number(latency.p999)),
        ("max", Json::Number(latency.max)),
        ("curve", array(latency.curve.iter().map(point))),
    ])
}

enum Json {
    Null,
    Number(f64),
    Text(String),
    Array(Vec<Json>),
    /// In this order.
    Object(Vec<(String, Json)>),
}

fn object<'a>(members: impl IntoIterator<Item = (&'a str, Json)>) -> Json {
    Json::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

fn array(items: impl IntoIterator<Item = Json>) -> Json {
    Json::Array(items.into_iter().collect())
}

impl Json {
    fn text(text: impl AsRef<str>) -> Json {
        Json::Text(text.as_ref().into())
    }

    fn optional(number: Option<f64>) -> Json {
        number.map_or(Json::Null, Json::Number)
    }

    fn write(&self, text: &mut String, depth: usize) {
        match self {
            // JSON knows neither infinity nor what is no number.
            Json::Number(number) if number.is_finite() => {
                write!(text, "{number}").expect("a string takes everything");
            }
            Json::Null | Json::Number(_) => text.push_str("null"),
            Json::Text(string) => quote(string, text),
            Json::Array(items) => {
                let is_flat = items.iter().all(|item| !matches!(item, Json::Object(_)));
                text.push('[');
                for (index, item) in items.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "," };
                    text.push_str(separator);
                    match is_flat {
                        true if index > 0 => text.push(' '),
                        true => {}
                        false => new_line(text, depth + 1),
                    }
                    item.write(text, depth + 1);
                }
                if !is_flat {
                    new_line(text, depth);
                }
                text.push(']');
            }
            Json::Object(members) => {
                text.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    text.push_str(if index == 0 { "" } else { "," });
                    new_line(text, depth + 1);
                    quote(name, text);
                    text.push_str(": ");
                    value.write(text, depth + 1);
                }
                if !members.is_empty() {
                    new_line(text, depth);
                }
                text.push('}');
            }
        }
    }
}

fn new_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
}

fn quote(string: &str, text: &mut String) {
    text.push('"');
    for character in string.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            '\n' => text.push_str("\\n"),
            control if control < ' ' => {
                write!(text, "\\u{:04x}", u32::from(control)).expect("a string takes everything");
            }
            other => text.push(other),
        }
    }
    text.push('"');
}
