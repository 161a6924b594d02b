//! One category of a process: its regions, what can be said of them, and with tracing the stacks that mapped
//! them.

use super::cells::{Row, cut, left, marker, name, right, words};
use super::theme::{StyleName, Theme};
use super::{Page, Part};
use crate::render::chain::chain_of_caller;
use crate::render::style::{clean, wrapped};
use crate::render::text::findings::fix_text;
use crate::report::model::{Finding, Region};
use crate::report::units::{size, thousands};
use crate::top::{Details, Opened, Pages, Pane, State};
use ratatui::text::Line;

/// The least that makes sense of where a region is from.
const ORIGIN: usize = 16;
/// From this height on there is space for blank lines.
const TALL: usize = 18;
/// Longer lines of text are hard to read.
const TEXT: usize = 110;

/// Lines of each part.
struct Split {
    regions: usize,
    findings: usize,
    stacks: usize,
}

fn split(state: &State, category: &str, (width, height): (usize, usize)) -> Split {
    let header = header(state, category, (width, Theme::PLAIN)).len();
    let space = height.saturating_sub(header);
    let traced = state.tracing.is_some();
    if space < 10 {
        // only the part that keys go to
        let only = |pane| if state.pane == pane { space } else { 0 };
        let (regions, findings, stacks) = (only(Pane::Table), only(Pane::Findings), only(Pane::Calls));
        return Split { regions, findings, stacks };
    }
    let Some(opened) = &state.opened else { return Split { regions: space, findings: 0, stacks: 0 } };
    let text = findings(opened, category, width, Theme::PLAIN).len() + 1;
    let stacks = if traced { (opened.shares_of(category).len().max(1) + 1).min(space / 3) } else { 0 };
    let rest = space - stacks;
    // a blank line below each
    let blank = usize::from(height >= TALL);
    let text = text + blank;
    let needed = opened.regions_of(category).len() + 1 + blank;
    let regions = needed.min((rest / 2).max(rest.saturating_sub(text)));
    Split { regions, findings: if traced { text.min(rest - regions) } else { rest - regions }, stacks }
}

pub(super) fn pages(state: &State, width: usize, height: usize) -> Pages {
    let Some((category, opened)) = state.category().zip(state.opened.as_ref()) else {
        return Pages::default();
    };
    let split = split(state, category, (width, height));
    Pages {
        table: split.regions.saturating_sub(1),
        calls: split.stacks.saturating_sub(1),
        text: split.findings.saturating_sub(1),
        text_rows: findings(opened, category, width, Theme::PLAIN).len(),
        mostly: false,
    }
}

pub(super) fn page(state: &State, (category, width, height): (&str, usize, usize), theme: Theme) -> Page {
    let header = header(state, category, (width, theme));
    let Some(opened) = &state.opened else { return Page { header, parts: Vec::new() } };
    let split = split(state, category, (width, height));
    let title = |pane| if state.pane == pane { StyleName::Title } else { StyleName::Head };
    let mut parts = Vec::new();
    if split.regions > 0 {
        let all = opened.regions_of(category);
        let (from, index, active) =
            (opened.regions.offset(), opened.regions.index(), state.pane == Pane::Table);
        let shown = all.iter().enumerate().skip(from).take(split.regions.saturating_sub(1));
        let rows = shown.map(|(at, region)| {
            let selected = active && at == index;
            let details = opened.details.as_ref();
            region_row(region, details, width, theme).selectable_with(marker(selected), selected)
        });
        let head = region_head(all.len(), width, (title(Pane::Table), theme));
        parts.push(Part { head: vec![head], rows: rows.collect(), height: split.regions });
    }
    if split.findings > 0 {
        let mut rows = findings(opened, category, width, theme);
        let hidden = rows.len() > split.findings.saturating_sub(1);
        rows.drain(..state.scroll.min(rows.len()));
        let more = if hidden { " (Tab, then ↓, shows more)" } else { "" };
        let head = Row::new(theme)
            .add(title(Pane::Findings), " why, and what can be done")
            .add(StyleName::Dim, more);
        parts.push(Part { head: vec![head.line()], rows, height: split.findings });
    }
    if split.stacks > 0 {
        let rows = stacks(state, opened, (category, width), theme);
        let from = opened.shares.offset();
        let text = format!(
            " {} {} {} mapped since tracing began, by",
            right("VIRT", 10),
            right("RSS", 10),
            right("calls", 7)
        );
        let head = Row::new(theme).add(title(Pane::Calls), cut(&text, width)).line();
        let rows = rows.into_iter().skip(from).collect();
        parts.push(Part { head: vec![head], rows, height: split.stacks });
    }
    Page { header, parts }
}

fn header(state: &State, category: &str, (width, theme): (usize, Theme)) -> Vec<Line<'static>> {
    let details = state.opened.as_ref().and_then(|opened| opened.details.as_ref());
    let Some(details) = details else { return Vec::new() };
    let process = &details.process;
    let Some(row) = process.categories.iter().find(|row| row.id == category) else {
        let text = format!(
            "{} ({}): nothing of this category is mapped any more",
            clean(&process.comm),
            process.pid
        );
        return vec![words(StyleName::Warning, &text, (width, theme))];
    };
    let whose = format!("{} ({}) › ", clean(&process.comm), process.pid);
    let title = Row::new(theme)
        .add(StyleName::Plain, cut(&whose, width / 2))
        .add(StyleName::Title, cut(&clean(&row.name), width.saturating_sub(whose.len().min(width / 2))));
    let gap = if width >= 60 { "   " } else { " " };
    let mut sums = Row::new(theme)
        .add(StyleName::Head, format!("VIRT {}", size(row.virt)))
        .add(StyleName::Plain, format!("{gap}RSS {}", size(row.rss)))
        .add(StyleName::Title, format!("{gap}unused {}", size(row.unused)));
    if width >= 70 {
        sums = sums.add(StyleName::Plain, format!("   writable {}", size(row.writable)));
    }
    if row.purged > 0 && width >= 96 {
        sums = sums.add(StyleName::Dim, format!("   given back {}", size(row.purged)));
    }
    vec![title.line(), sums.line()]
}

/// `0x7f0000000000-0x7f0004000000` in so many columns, the addresses of 47 bits; of small screens the
/// start alone.
fn range_columns(width: usize) -> usize {
    if width >= 60 { 29 } else { 14 }
}

fn region_columns(width: usize) -> (usize, bool, usize) {
    let unused = width >= 92;
    let used = 1
        + range_columns(width)
        + 1
        + 4
        + 11
        + if width >= 64 { 11 } else { 0 }
        + if unused { 11 } else { 0 }
        + 1;
    let rest = width.saturating_sub(used);
    // what is left: the part, and then where it is from, if that has space for a word
    let origin = rest.saturating_sub(25);
    let origin = if origin >= ORIGIN { origin } else { 0 };
    (rest.min(24), unused, origin)
}

fn region_head(count: usize, width: usize, (title, theme): (StyleName, Theme)) -> Line<'static> {
    let (part, unused, origin) = region_columns(width);
    let noun = match (count, width) {
        (_, ..60) => "ranges",
        (1, _) => "address range",
        _ => "address ranges",
    };
    let mut text = format!(
        " {} prot {}",
        left(&format!("{} {noun}", thousands(count as u64)), range_columns(width)),
        right("VIRT", 10)
    );
    if width >= 64 {
        text += &format!(" {}", right("RSS", 10));
    }
    if unused {
        text += &format!(" {}", right("unused", 10));
    }
    text += &format!(" {}", left("part", part));
    if origin >= ORIGIN {
        text += &format!(" {}", left("from", origin));
    }
    Row::new(theme).add(title, cut(text.trim_end(), width)).line()
}

fn region_row(region: &Region, details: Option<&Details>, width: usize, theme: Theme) -> Row {
    let (part, unused, origin) = region_columns(width);
    let range = match range_columns(width) {
        14 => region.start.clone(),
        _ => format!("{}-{}", region.start, region.end),
    };
    let mut row = Row::new(theme)
        .add(StyleName::Plain, left(&range, range_columns(width)))
        .add(StyleName::Dim, format!(" {}", left(&region.prot, 4)))
        .add(StyleName::Plain, format!(" {}", right(&size(region.virt), 10)));
    if width >= 64 {
        row = row.add(StyleName::Plain, format!(" {}", right(&size(region.rss), 10)));
    }
    if unused {
        let bytes = region.virt.saturating_sub(region.rss).saturating_sub(region.swap);
        row = row.add(StyleName::Plain, format!(" {}", right(&size(bytes), 10)));
    }
    row = row.add(StyleName::Plain, format!(" {}", name(&region.part, part)));
    if origin >= ORIGIN {
        row = row.add(StyleName::Dim, format!(" {}", cut(&from(region, details, origin), origin)));
    }
    row
}

/// The file, or the stack that requested it, or why that is not known.
fn from(region: &Region, details: Option<&Details>, columns: usize) -> String {
    if let Some(origin) = &region.origin {
        let stack = details.and_then(|details| details.stack(origin.stack));
        let by = stack.map(|stack| chain_of_caller(stack, columns)).unwrap_or_default();
        return if by.is_empty() { format!("{} by {}", origin.op, clean(&origin.comm)) } else { by };
    }
    if let Some(path) = &region.path {
        return clean(path);
    }
    let thread = region.thread.map(|tid| format!("thread {tid}, ")).unwrap_or_default();
    let why = match region.without_call.as_deref() {
        Some("preexisting") => "mapped before top began",
        Some("kernel") => "the kernel, at execve",
        _ => "not known",
    };
    format!("{thread}{why}")
}

/// The findings of the category in full, in lines.
fn findings(opened: &Opened, category: &str, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let Some(details) = &opened.details else { return Vec::new() };
    let width = width.min(TEXT);
    let mut lines = Vec::new();
    let all = details.process.findings.iter().filter(|finding| finding.category == category);
    for (number, finding) in all.enumerate() {
        if number > 0 {
            lines.push(Line::default());
        }
        finding_lines(finding, details, (width, theme), &mut lines);
    }
    if lines.is_empty() {
        lines.push(Row::new(theme).add(StyleName::Dim, " nothing to say about it").line());
    }
    lines
}

fn finding_lines(
    finding: &Finding,
    details: &Details,
    (width, theme): (usize, Theme),
    lines: &mut Vec<Line<'static>>,
) {
    let head = format!(" {} unused · ", size(finding.unused));
    let space = width.saturating_sub(head.len());
    lines.push(
        Row::new(theme)
            .add(StyleName::Head, head)
            .add(StyleName::Plain, cut(&clean(&finding.title), space))
            .line(),
    );
    let mut labelled = |label: &str, style: StyleName, text: &str| {
        for (at, line) in wrapped(&clean(text), width.saturating_sub(8).max(10)).into_iter().enumerate() {
            let label = if at == 0 { label } else { "" };
            let row = Row::new(theme).add(style, format!("   {}", left(label, 5)));
            lines.push(row.add(StyleName::Plain, cut(&line, width.saturating_sub(8))).line());
        }
    };
    if let Some(stack) = details.stack(finding.stack) {
        labelled("by", StyleName::Key, &chain_of_caller(stack, width.saturating_sub(8)));
    }
    if let Some(story) = &finding.story {
        labelled("how", StyleName::Dim, story);
    }
    if !finding.why.is_empty() {
        labelled("why", StyleName::Dim, &finding.why);
    }
    for fix in &finding.fix {
        labelled("fix", StyleName::Good, &fix_text(fix));
    }
    for no in &finding.no_help {
        labelled("not", StyleName::Dim, &format!("{}: {}", no.knob, no.why));
    }
    if finding.doubtful {
        labelled("doubt", StyleName::Warning, "events were lost: the origin of some of it may be wrong");
    }
}

fn stacks(
    state: &State,
    opened: &Opened,
    (category, width): (&str, usize),
    theme: Theme,
) -> Vec<Line<'static>> {
    let active = state.pane == Pane::Calls;
    let shares = opened.shares_of(category);
    if shares.is_empty() {
        return vec![Row::new(theme).add(StyleName::Dim, " nothing of it").line()];
    }
    let row = |(at, share): (usize, &crate::top::StackShare)| {
        let space = width.saturating_sub(1 + 10 + 1 + 10 + 1 + 7 + 1);
        let stack = opened.details.as_ref().and_then(|details| details.stack(share.stack));
        let by = stack.map_or_else(|| "stack lost".to_owned(), |stack| chain_of_caller(stack, space));
        let selected = active && at == opened.shares.index();
        Row::new(theme)
            .add(StyleName::Plain, right(&size(share.virt), 10))
            .add(StyleName::Plain, format!(" {}", right(&size(share.rss), 10)))
            .add(StyleName::Dim, format!(" {}", right(&thousands(share.calls), 7)))
            .add(StyleName::Plain, format!(" {}", cut(&by, space)))
            .selectable_with(marker(selected), selected)
    };
    shares.iter().enumerate().map(row).collect()
}
