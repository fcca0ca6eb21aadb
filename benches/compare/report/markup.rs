//! HTML and SVG as text: what is opened is closed, and every text is escaped.

use std::fmt::{self, Display};

pub(crate) type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

#[derive(Default)]
pub(crate) struct Markup {
    text: String,
}

impl Markup {
    pub(crate) fn into_string(self) -> String {
        self.text
    }

    pub(crate) fn element(
        &mut self,
        tag: &str,
        attributes: Attributes<'_>,
        content: impl FnOnce(&mut Markup),
    ) {
        self.open(tag, attributes, ">");
        content(self);
        self.text += &format!("</{tag}>\n");
    }

    /// An element with nothing but text in it.
    pub(crate) fn leaf(&mut self, tag: &str, attributes: Attributes<'_>, text: &str) {
        self.element(tag, attributes, |inner| inner.text(text));
    }

    /// An element that has no content.
    pub(crate) fn empty(&mut self, tag: &str, attributes: Attributes<'_>) {
        self.open(tag, attributes, "/>\n");
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.text += &escape(text);
    }

    /// For style sheets and scripts, in which nothing is escaped.
    pub(crate) fn verbatim(&mut self, text: &str) {
        self.text += text;
    }

    fn open(&mut self, tag: &str, attributes: Attributes<'_>, end: &str) {
        self.text += &format!("<{tag}");
        for (name, value) in attributes {
            self.text += &format!(" {name}=\"{}\"", escape(&value.to_string()));
        }
        self.text += end;
    }
}

/// Also for attributes. Control characters, which no HTML may have, become blanks.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\n' => escaped.push('\n'),
            character if character.is_control() => escaped.push(' '),
            character => escaped.push(character),
        }
    }
    escaped
}

/// A coordinate: one decimal is finer than anyone sees.
#[derive(Clone, Copy)]
pub(crate) struct Px(pub(crate) f64);

impl Display for Px {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_assert!(self.0.is_finite(), "scales give finite positions");
        write!(formatter, "{:.1}", self.0)
    }
}
