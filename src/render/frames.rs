//! A stack as lines.

use super::style::{Tone, clean, truncated};
use super::text::{TextOptions, WIDTH};
use crate::report::model::{Frame, Role, Stack};
use std::ops::Range;

/// Frames shown of a long stack: innermost, and outermost.
const INNER_FRAMES: usize = 9;
const OUTER_FRAMES: usize = 4;
/// Frames shown of a library of whose inside the rest is hidden, before its outermost one.
const ENTERED: usize = 2;
/// Frames shown of a long stack: this many of the innermost, and of the outermost.
const MAX_MODULE: usize = 22;

/// A stack, a frame a line; of a long one what matters.
pub(super) fn frames(stack: &Stack, options: TextOptions, out: &mut String) {
    // the system call's wrapper under two names says nothing twice
    let (all, left_out) = stack.as_written();
    let module_width =
        all.iter().map(|f| clean(&f.module).chars().count()).max().unwrap_or(0).min(MAX_MODULE);
    let function_width = all.iter().map(|f| function(f).chars().count()).max().unwrap_or(0).min(52);
    let line = |f: &Frame| {
        let module = truncated(&clean(&f.module), module_width);
        let place = match (&f.file, f.line) {
            (Some(file), Some(line)) => {
                let base = file.rsplit('/').next().unwrap_or(file);
                format!("{}:{line}", clean(base))
            }
            (Some(file), None) => clean(file.rsplit('/').next().unwrap_or(file)),
            (None, _) => String::new(),
        };
        let text = format!(
            "       {module:<module_width$}  {:<function_width$}  {place}",
            truncated(&function(f), function_width)
        );
        truncated(text.trim_end(), WIDTH)
    };
    let caller = all.iter().position(|f| f.managed && f.role == Role::Program);
    let hidden = caller.map_or_else(|| hidden(&all), |caller| hidden_with_caller(caller, all.len()));
    for (i, frame) in all.iter().enumerate() {
        match hidden.iter().find(|gap| gap.contains(&i)) {
            Some(gap) if gap.start == i => {
                let text = format!("       … {} frames …", gap.len());
                *out += &format!("{}\n", options.color.paint(Tone::Dim, &text));
            }
            Some(_) => {}
            None => *out += &format!("{}\n", line(frame)),
        }
    }
    if left_out > 0 {
        let text = format!("       (without {left_out} frames of the interpreter itself)");
        *out += &format!("{}\n", options.color.paint(Tone::Dim, &text));
    }
    let ending = match (stack.completeness.as_str(), stack.on_behalf_of()) {
        ("truncated", _) => "the stack goes on: it was not copied further".to_owned(),
        ("incomplete", Some(who)) => format!("called on a {who}'s own stack, which is not copied"),
        ("incomplete", None) => "the stack goes on: no unwind information here".to_owned(),
        _ => return,
    };
    let ending = format!("       ({ending})");
    *out += &format!("{}\n", options.color.paint(Tone::Dim, &ending));
}

/// The same of a stack on which the function is known that the reader wrote: it and its callers are shown.
fn hidden_with_caller(caller: usize, length: usize) -> Vec<Range<usize>> {
    let inside = INNER_FRAMES / 2 + 1..caller.saturating_sub(1);
    let outside = caller + INNER_FRAMES / 2 + 1..length.saturating_sub(OUTER_FRAMES);
    [inside, outside].into_iter().filter(|gap| gap.len() > 1).collect()
}

/// What of a long stack is not shown: the middle. Where that would be an allocator's own frames up to its
/// caller, they go instead: their caller is what matters to the reader.
fn hidden(all: &[&Frame]) -> Vec<Range<usize>> {
    let outer = all.len().saturating_sub(OUTER_FRAMES);
    if outer <= INNER_FRAMES + 1 {
        return Vec::new();
    }
    let module = |at: usize| all.get(at).map(|f| &f.module);
    let cut = INNER_FRAMES - 1;
    let begin = (0..cut).rev().find(|&at| module(at) != module(cut)).map_or(0, |at| at + 1);
    let end = (cut..outer).find(|&at| module(at) != module(cut)).unwrap_or(outer);
    let inside = begin + ENTERED..end - 1;
    if end == outer || inside.len() < 2 {
        let middle = INNER_FRAMES..outer;
        return vec![middle];
    }
    let middle = INNER_FRAMES + inside.len()..outer;
    if middle.len() < 2 { vec![inside] } else { vec![inside, middle] }
}

/// `malloc+0x11e`, `fn@0x954f0+0x125` or `+0x95615`; without an offset where the line is known.
pub(super) fn function(f: &Frame) -> String {
    let mut text = match (&f.symbol, &f.function_start) {
        (Some(symbol), _) => match f.symbol_offset.filter(|&o| o > 0 && f.line.is_none() && !f.inlined) {
            Some(offset) => {
                let tail = format!("+{offset:#x}");
                format!("{}{tail}", truncated(&clean(symbol), 52 - tail.len().min(20)))
            }
            None => clean(symbol),
        },
        (None, Some(start)) => format!("fn@{}+{:#x}", clean(start), f.function_offset.unwrap_or(0)),
        (None, None) => format!("+{}", clean(&f.offset)),
    };
    if f.inlined {
        text += " (inlined)";
    }
    if f.guess {
        text += " (guess)";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ab` is a frame of module a, called by one of module b.
    fn shown(modules: &str) -> String {
        let frame = |c: char| Frame { module: c.to_string(), ..Frame::default() };
        let frames: Vec<Frame> = modules.chars().map(frame).collect();
        let hidden = hidden(&frames.iter().collect::<Vec<_>>());
        let line = |(at, c): (usize, char)| match hidden.iter().find(|gap| gap.contains(&at)) {
            Some(gap) => (gap.start == at).then_some('…'),
            None => Some(c),
        };
        modules.chars().enumerate().filter_map(line).collect()
    }

    #[test]
    fn who_called_and_its_callers_are_shown() {
        assert!(hidden_with_caller(3, 9).is_empty(), "short enough");
        assert_eq!(hidden_with_caller(3, 20), vec![8..16]);
        assert_eq!(hidden_with_caller(20, 22), vec![5..19]);
        assert_eq!(hidden_with_caller(20, 40), vec![5..19, 25..36]);
    }

    #[test]
    fn the_middle_is_hidden_or_the_inside_of_a_library() {
        assert_eq!(shown("cjjjjjjjjrrrcm"), "cjjjjjjjjrrrcm", "short enough");
        assert_eq!(shown("cpppppppppppppppppppccm"), "cpppppppp…pccm");
        assert_eq!(shown("cjjjjjjjjjjjjrrrrrrrrrrccm"), "cjj…jrrrrr…rccm");
        assert_eq!(shown("cjjjjjjjjjjjjrrrccm"), "cjj…jrrrccm");
        assert_eq!(shown("ccccccjjjrrrrrrrrrrrrrccm"), "ccccccjjj…rccm", "nothing much to hide");
        assert_eq!(shown("mmmmmmmmmmmmmmmmmmmmm"), "mmmmmmmmm…mmmm");
    }
}
