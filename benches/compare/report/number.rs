//! Figures as people write them.

/// With as many decimals as mean something: 182,400, 14.3, 5.41, 0.003.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 0.0005 => "<0.001".into(),
        size if size < 0.9995 => format!("{value:.3}"),
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => count(value),
    }
}

/// 0.97, 1.94, 28.7, 120.
pub(crate) fn ratio(value: f64) -> String {
    match value.abs() {
        size if size < 0.0995 => format!("{value:.3}"),
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => count(value),
    }
}

/// In thousands: 182,400.
pub(crate) fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value <= -0.5 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// For axes: 150k, 2M.
pub(crate) fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        value if value >= 1e3 => format!("{}k", trimmed(value / 1e3)),
        value => trimmed(value),
    }
}

/// Microseconds, in the unit that keeps them short.
pub(crate) fn micros(value: f64) -> String {
    match value {
        value if value >= 999_500.0 => format!("{} s", three_digits(value / 1e6)),
        value if value >= 999.5 => format!("{} ms", three_digits(value / 1e3)),
        value => format!("{} us", three_digits(value)),
    }
}

/// The same for axes, where ticks are round: 20 us, 1 ms.
pub(crate) fn short_micros(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} s", trimmed(value / 1e6)),
        value if value >= 1e3 => format!("{} ms", trimmed(value / 1e3)),
        value => format!("{} us", trimmed(value)),
    }
}

/// As it stands on an axis: 0, 2.5, 0.25, 100.
pub(crate) fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

fn three_digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => count(value),
    }
}

/// 99.9 %
pub(crate) fn percentile(value: f64) -> String {
    let text = format!("{value:.4}");
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}
