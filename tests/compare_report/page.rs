//! Enough of a parser to see that a page is made right.

/// The text of an element in a chart, with the room that it takes at most.
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) text: String,
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) y: f64,
}

#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) labels: Vec<Label>,
}

/// Everything in the page but its tags.
pub(crate) struct Page {
    pub(crate) text: String,
    pub(crate) charts: Vec<Chart>,
}

/// Panics where an element is not closed, or closed by another's tag.
pub(crate) fn parse(page: &str) -> Page {
    let mut open: Vec<&str> = Vec::new();
    let mut parsed = Page { text: String::new(), charts: Vec::new() };
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a document type");
    let mut label = None;
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        assert!(!text.contains('>') || open.last() == Some(&"style"), "not escaped: {text}");
        if open.last() != Some(&"style") {
            parsed.text += text;
        }
        let end = rest[start..].find('>').expect("a tag ends") + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "after {text}");
            if name == "text" {
                let (chart, at): (&mut Chart, _) =
                    (parsed.charts.last_mut().unwrap(), label.take());
                chart.labels.push(placed(at.expect("begun"), text));
            }
            continue;
        }
        match name {
            "svg" => parsed.charts.push(chart(tag)),
            "text" => label = Some(tag),
            _ => {}
        }
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    parsed
}

fn chart(tag: &str) -> Chart {
    let view_box = attribute(tag, "viewBox").expect("every chart scales");
    let numbers: Vec<f64> = view_box.split(' ').map(|number| number.parse().unwrap()).collect();
    Chart { width: numbers[2], height: numbers[3], labels: Vec::new() }
}

fn placed(tag: &str, text: &str) -> Label {
    let number = |name| attribute(tag, name).unwrap().parse::<f64>().unwrap();
    let (x, y) = (number("x"), number("y"));
    // 12 pixels high, so a digit is less than 7 wide.
    let width = text.replace("&lt;", "<").chars().count() as f64 * 6.8;
    let left = match attribute(tag, "text-anchor").unwrap() {
        "start" => x,
        "middle" => x - width / 2.0,
        _ => x - width,
    };
    Label { text: text.into(), left, right: left + width, y }
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = tag.split_once(&format!(" {name}=\""))?;
    after.split('"').next()
}
