//! A flame graph as an SVG document. It is complete without its script, which zooms, searches and fits it
//! to the window.

use super::colors::Rgb;
use super::tree::Box;
use crate::render::folded::allowed;

/// The style of a box.
pub(super) struct FrameStyle {
    pub color: Rgb,
    /// The tooltip: a name, and figures in one last pair of parentheses, which the box's text is without.
    pub title: String,
}

/// What is drawn outside of the boxes.
pub(super) struct Frame<'a> {
    pub title: &'a str,
    pub subtitle: &'a str,
    /// The root at the top.
    pub inverted: bool,
    /// Colours and what they mean.
    pub legend: Vec<(Rgb, String)>,
}

/// Boxes narrower than this part of the whole are left out: half a pixel on a large screen.
const MIN_PART: f64 = 0.0002;
/// Pixels: the whole until the script knows the window's, a level, a row of the legend, and from the edge.
const WIDTH: usize = 1200;
const LEVEL: usize = 16;
const ROW: usize = 18;
const EDGE: usize = 10;
/// Of a character of the font, about.
const CHARACTER: usize = 7;
/// Where what is below title and subtitle begins.
const TOP: usize = 60;

const STYLE: &str = include_str!("flame.css");
const SCRIPT: &str = include_str!("flame.js");

/// `style_of` returns a box's style; the first box is the root.
pub(super) fn paint<V>(
    boxes: &[Box<'_, V>],
    style: &dyn Fn(&Box<'_, V>) -> FrameStyle,
    frame: &Frame<'_>,
) -> String {
    let total = boxes.first().map_or(1, |all| all.width.max(1)) as f64;
    let part = |bytes: u64| bytes as f64 / total;
    let drawn: Vec<&Box<'_, V>> = boxes.iter().filter(|found| part(found.width) >= MIN_PART).collect();
    let highest = drawn.iter().map(|found| found.level).max().unwrap_or(0);
    // Figures of the box under the pointer: next to the root.
    let root = if frame.inverted { TOP + LEVEL } else { TOP + highest * LEVEL };
    let (details, mut bottom) = match frame.inverted {
        true => (TOP + 10, root + (highest + 1) * LEVEL),
        false => (root + 2 * LEVEL + 4, root + 3 * LEVEL),
    };
    bottom += EDGE;
    let (legend, height) = legend(&frame.legend, bottom);
    let (right, inner, middle) = (WIDTH - EDGE, WIDTH - 2 * EDGE, WIDTH / 2);
    let (title, subtitle) = (escaped(frame.title), escaped(frame.subtitle));
    let mut out = format!(
        r##"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">
<!-- boxes are as wide as their bytes; docs/flamegraphs.md of vmaudit -->
<style>
{STYLE}</style>
<script><![CDATA[
{SCRIPT}]]></script>
<rect width="100%" height="100%" fill="#fcfcfd"/>
<text id="title" x="{middle}" y="24">{title}</text>
<text id="subtitle" x="{middle}" y="46">{subtitle}</text>
<text id="unzoom" class="hide" x="{EDGE}" y="24">Reset Zoom</text>
<text id="search" x="{right}" y="24">Search</text>
<text id="details" x="{EDGE}" y="{details}"> </text>
<text id="matched" x="{right}" y="{details}"> </text>
<svg id="frames" x="{EDGE}" width="{inner}">
"##
    );
    for found in drawn {
        let FrameStyle { color, title } = style(found);
        let y = if frame.inverted { root + found.level * LEVEL } else { root - found.level * LEVEL };
        let (x, width) = (100.0 * part(found.start), 100.0 * part(found.width));
        let text = fitted(found.name, (width / 100.0 * inner as f64) as usize / CHARACTER);
        out += &format!(
            r#"<g data-x="{}" data-w="{}" data-level="{}"><title>{}</title><rect x="{x:.4}%" y="{y}" width="{width:.4}%" height="{}" fill="{color}"/><text x="{x:.4}%" dx="3" y="{}">{}</text></g>
"#,
            found.start,
            found.width,
            found.level,
            escaped(&title),
            LEVEL - 1,
            y + 11,
            escaped(&text)
        );
    }
    out + "</svg>\n" + &legend + "</svg>\n"
}

/// Of a name what a box has the width for.
fn fitted(name: &str, characters: usize) -> String {
    match characters {
        0..3 => String::new(),
        _ if name.chars().count() <= characters => name.to_owned(),
        _ => name.chars().take(characters - 2).chain("..".chars()).collect(),
    }
}

/// Squares with words, in rows from `top` on; and where they end.
fn legend(chips: &[(Rgb, String)], top: usize) -> (String, usize) {
    let mut out = "<g id=\"legend\">".to_owned();
    let (mut x, mut y) = (EDGE, top);
    for (color, words) in chips {
        let wide = 16 + words.chars().count() * CHARACTER + 14;
        if x > EDGE && x + wide > WIDTH - 2 * EDGE {
            (x, y) = (EDGE, y + ROW);
        }
        out += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"11\" height=\"11\" rx=\"2\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            x + 16,
            y + 10,
            escaped(words)
        );
        x += wide;
    }
    (out + "</g>\n", if chips.is_empty() { top } else { y + ROW + 6 })
}

/// Text in XML; control characters, which it does not allow, are escaped already.
fn escaped(text: &str) -> String {
    let text = allowed(text).replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
