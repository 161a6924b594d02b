//! Colours, tooltips and a legend, written into a flame graph that inferno laid out.

use super::FlameError;
use super::colors::Rgb;
use super::tree::{Box, Boxes};
use crate::render::folded::allowed;
use std::collections::BTreeSet;
use std::ops::AddAssign;

/// How a box looks.
pub(super) struct Look {
    pub color: Rgb,
    /// The tooltip: a name, and figures in one last pair of parentheses, which the script takes off for
    /// the box's text.
    pub title: String,
}

/// Colours and what they mean.
pub(super) struct Legend {
    pub chips: Vec<(Rgb, String)>,
}

/// Of a box, up to where its figures are.
const BOX: &str = "<g><title>";
/// Pixels: a row of the legend, and from the edge.
const ROW: usize = 18;
const EDGE: usize = 10;
/// The width for which the legend is laid out.
const WIDTH: usize = 1180;
/// Of a character of the font, about.
const CHARACTER: usize = 7;

const STYLE: &str = "
#title { font-weight:600; }
#subtitle { fill:#5b6673; }
#details, #matched { fill:#1b2330; }
#search { opacity:0.55; }
#frames rect { rx:1.5px; }
#frames > *:hover > rect { stroke:#1b2330; stroke-width:1; }
#frames text { pointer-events:none; }
#legend text { fill:#3a4553; font-size:11px; }
";

/// Rewrites each box that inferno drew; `look` tells how one looks at its level (0: all).
///
/// # Errors
/// When what was drawn is not what this knows to read.
pub(super) fn paint<V: AddAssign + Copy + Default>(
    drawn: &str,
    boxes: &Boxes<'_, V>,
    look: &dyn Fn(&Box<'_, V>, usize) -> Look,
    legend: &Legend,
) -> Result<String, FlameError> {
    let mut pieces = drawn.split(BOX);
    let head = pieces.next().ok_or(FlameError::Unexpected("nothing"))?;
    let pieces: Vec<&str> = pieces.collect();
    let levels = Levels::of(&pieces, head)?;
    let (legend, height) = legend_svg(legend, head)?;
    let mut out = with_height(head, height)?.replace("</style>", &format!("{STYLE}</style>"));
    for piece in pieces {
        let (_, rest) = split(piece)?;
        let start = attribute(rest, "fg:x").and_then(|x| x.parse().ok());
        let level = levels.level(rest)?;
        let found = start.and_then(|start| boxes.get(level, start));
        let found = found.ok_or(FlameError::Unexpected("a box that is none of ours"))?;
        let look = look(found, level);
        let fill = attribute(rest, "fill").ok_or(FlameError::Unexpected("no fill"))?;
        let rest = rest.replacen(&format!("fill=\"{fill}\""), &format!("fill=\"{}\"", look.color), 1);
        out += &format!("{BOX}{}</title>{rest}", escaped(&look.title));
    }
    let end = out.rfind("</svg>").ok_or(FlameError::Unexpected("no end"))?;
    out.insert_str(end, &legend);
    out.push('\n');
    Ok(out)
}

/// The levels by where they are drawn.
struct Levels {
    tops: Vec<u64>,
}

impl Levels {
    fn of(pieces: &[&str], head: &str) -> Result<Levels, FlameError> {
        let mut tops = BTreeSet::new();
        for piece in pieces {
            tops.insert(top(split(piece)?.1)?);
        }
        let mut tops: Vec<u64> = tops.into_iter().collect();
        if !head.contains("var inverted = true;") {
            tops.reverse();
        }
        Ok(Levels { tops })
    }

    fn level(&self, rest: &str) -> Result<usize, FlameError> {
        let top = top(rest)?;
        self.tops.iter().position(|y| *y == top).ok_or(FlameError::Unexpected("no level"))
    }
}

/// A box's title, and what follows it.
fn split(piece: &str) -> Result<(&str, &str), FlameError> {
    piece.split_once("</title>").ok_or(FlameError::Unexpected("no end of a title"))
}

fn top(rest: &str) -> Result<u64, FlameError> {
    attribute(rest, "y").and_then(|y| y.parse().ok()).ok_or(FlameError::Unexpected("no y"))
}

/// The value of the first attribute of that name.
fn attribute<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(&format!(" {name}=\""))?;
    after.split_once('"').map(|(value, _)| value)
}

/// A taller picture, to have room for what comes below.
fn with_height(head: &str, more: usize) -> Result<String, FlameError> {
    let height: usize = height(head)?;
    let taller = height + more;
    let head = head.replacen(&format!("height=\"{height}\""), &format!("height=\"{taller}\""), 1);
    let head = head.replacen(&format!(" {height}\""), &format!(" {taller}\""), 1);
    // the background
    Ok(head.replacen(&format!("height=\"{height}\""), &format!("height=\"{taller}\""), 1))
}

fn height(head: &str) -> Result<usize, FlameError> {
    attribute(head, "height").and_then(|h| h.parse().ok()).ok_or(FlameError::Unexpected("no height"))
}

/// Squares with words, in rows below the picture; and how high they are.
fn legend_svg(legend: &Legend, head: &str) -> Result<(String, usize), FlameError> {
    let top = height(head)?;
    let mut out = "<g id=\"legend\">".to_owned();
    let (mut x, mut row) = (EDGE, 0);
    for (color, words) in &legend.chips {
        let wide = 16 + words.chars().count() * CHARACTER + 14;
        if x > EDGE && x + wide > WIDTH {
            (x, row) = (EDGE, row + 1);
        }
        let y = top + row * ROW;
        out += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"11\" height=\"11\" rx=\"2\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            x + 16,
            y + 10,
            escaped(words)
        );
        x += wide;
    }
    out += "</g>";
    Ok((out, if legend.chips.is_empty() { 0 } else { (row + 1) * ROW + 6 }))
}

/// Text in XML; control characters, which it does not allow, are escaped already.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in allowed(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}
