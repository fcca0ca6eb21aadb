//! The few shapes that charts are made of.

use super::markup::{Markup, Px};

/// The width of every chart. Two fit side by side, and one still reads well on a narrow screen.
pub(super) const WIDTH: f64 = 560.0;

/// What is drawn at a point, so that colour is never alone in telling contestants apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    Circle,
    Square,
    Diamond,
    Up,
    Down,
}

#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A chart with its caption. `description` is for those who hear the page.
pub(super) fn chart(
    page: &mut Markup,
    height: f64,
    caption: &str,
    description: &str,
    draw: impl FnOnce(&mut Markup),
) {
    page.element("figure", &[], |figure| {
        figure.leaf("figcaption", &[], caption);
        let view_box = format!("0 0 {} {}", Px(WIDTH), Px(height));
        figure.element("svg", &[("viewBox", &view_box), ("role", &"img")], |svg| {
            svg.leaf("title", &[], caption);
            svg.leaf("desc", &[], description);
            draw(svg);
        });
    });
}

impl Markup {
    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1, x2, y2) = (Px(from.0), Px(from.1), Px(to.0), Px(to.1));
        self.empty(
            "line",
            &[("class", &class), ("x1", &x1), ("y1", &y1), ("x2", &x2), ("y2", &y2)],
        );
    }

    pub(super) fn label(&mut self, class: &str, anchor: Anchor, at: (f64, f64), text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = (Px(at.0), Px(at.1));
        let attributes: super::markup::Attributes<'_> =
            &[("class", &class), ("text-anchor", &anchor), ("x", &x), ("y", &y)];
        self.leaf("text", attributes, text);
    }

    /// A horizontal bar around the line `y`.
    pub(super) fn bar(&mut self, class: &str, from: f64, to: f64, y: f64, thickness: f64) {
        let width = Px((to - from).max(0.5));
        let (x, top, height) = (Px(from), Px(y - thickness / 2.0), Px(thickness));
        self.empty(
            "rect",
            &[("class", &class), ("x", &x), ("y", &top), ("width", &width), ("height", &height)],
        );
    }

    /// From the least to the most that was seen; nothing if that is the same.
    pub(super) fn whisker(&mut self, from: f64, to: f64, y: f64) {
        if to - from < 0.1 {
            return;
        }
        let cap = 3.0;
        self.line("whisker", (from, y), (to, y));
        self.line("whisker", (from, y - cap), (from, y + cap));
        self.line("whisker", (to, y - cap), (to, y + cap));
    }

    pub(super) fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", Px(*x), Px(*y))).collect();
        self.empty("polyline", &[("class", &class), ("points", &points.join(" "))]);
    }

    /// With a tooltip, unless it is empty.
    pub(super) fn mark(&mut self, class: &str, mark: Mark, (x, y): (f64, f64), tip: &str) {
        let corners: &[(f64, f64)] = match mark {
            Mark::Circle => {
                let (x, y) = (Px(x), Px(y));
                let attributes: super::markup::Attributes<'_> =
                    &[("class", &class), ("cx", &x), ("cy", &y), ("r", &"3.6")];
                return self.element("circle", attributes, |circle| circle.tip(tip));
            }
            Mark::Square => &[(-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)],
            Mark::Diamond => &[(0.0, -4.6), (4.6, 0.0), (0.0, 4.6), (-4.6, 0.0)],
            Mark::Up => &[(0.0, -4.4), (4.2, 3.2), (-4.2, 3.2)],
            Mark::Down => &[(0.0, 4.4), (4.2, -3.2), (-4.2, -3.2)],
        };
        let corners: Vec<String> =
            corners.iter().map(|(dx, dy)| format!("{},{}", Px(x + dx), Px(y + dy))).collect();
        let points = corners.join(" ");
        self.element("polygon", &[("class", &class), ("points", &points)], |shape| shape.tip(tip));
    }

    pub(super) fn tip(&mut self, tip: &str) {
        if !tip.is_empty() {
            self.leaf("title", &[], tip);
        }
    }
}
