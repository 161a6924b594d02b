//! The life of an address as text, at most 100 columns wide where stacks and paths allow it, or as
//! JSON.

use super::frames::frames;
use super::style::{Color, Tone, clean, truncated, wrapped};
use super::text::{TextOptions, WIDTH};
use crate::report::explanation::{Entry, Explanation, Neighbour, Now, Step};
use crate::report::model::Region;
use crate::report::units::{counted, size, thousands};

/// Where the text of a step begins.
const INDENT: usize = 5;

/// The whole explanation; ends with a newline. `stacks`: with the call stacks.
pub fn explanation_to_text(explanation: &Explanation, stacks: bool, color: Color) -> String {
    let text = Text { explanation, stacks, color };
    let mut out = String::new();
    text.head(&mut out);
    text.past(&mut out);
    text.now(&mut out);
    out
}

struct Text<'a> {
    explanation: &'a Explanation,
    stacks: bool,
    color: Color,
}

impl Text<'_> {
    fn head(&self, out: &mut String) {
        let e = self.explanation;
        let address = self.color.paint(Tone::Heading, &e.address);
        let page = if e.address == e.page.start {
            String::new()
        } else {
            format!(" · page {}-{}", e.page.start, e.page.end)
        };
        *out += &format!("{address} in {} (pid {}){page}\n", truncated(&clean(&e.comm), 32), e.pid);
        if !e.other_pids.is_empty() {
            let others: Vec<String> = e.other_pids.iter().take(8).map(ToString::to_string).collect();
            let more = if e.other_pids.len() > 8 { ", …" } else { "" };
            let text = format!("also used in process {}{more}: see --pid", others.join(", "));
            self.note(&text, out);
        }
    }

    fn past(&self, out: &mut String) {
        let e = self.explanation;
        if !e.traced {
            self.note("its past is not known: record it (vmaudit run -o REC), then explain REC", out);
            return;
        }
        if e.before_exec > 0 {
            let text = format!(
                "{} at this address belong to programs that the process ran before its last execve",
                counted(e.before_exec, "step")
            );
            self.note(&text, out);
        }
        if e.entries.is_empty() {
            out.push('\n');
            *out += "  no call ever mapped it\n";
        }
        for (number, entry) in e.entries.iter().enumerate() {
            out.push('\n');
            self.entry(number + 1, entry, out);
            if e.omitted > 0 && number + 1 == e.entries.len() / 2 {
                let text = format!("… {} left out here …", counted(e.omitted, "step"));
                *out += &format!("\n     {}\n", self.color.paint(Tone::Warning, &text));
            }
        }
    }

    fn entry(&self, number: usize, entry: &Entry, out: &mut String) {
        let until = seconds(entry.last_elapsed_ns);
        if let [step] = entry.steps.as_slice() {
            let times = match entry.times {
                0 | 1 => String::new(),
                n => format!(" ({} times, until {until} s)", thousands(n)),
            };
            self.step(&format!("{number:>3}"), step, &times, out);
            return;
        }
        let text = format!(
            "{} rounds of these {} steps, until {until} s:",
            thousands(entry.times),
            entry.steps.len()
        );
        *out += &format!("{number:>3}  {}\n", self.color.paint(Tone::Key, &text));
        for (letter, step) in ('a'..='z').zip(&entry.steps) {
            self.step(&format!("{letter:>3}"), step, "", out);
        }
    }

    fn step(&self, label: &str, step: &Step, times: &str, out: &mut String) {
        let time = format!("{} s", seconds(step.elapsed_ns));
        let text = format!("{}{times}", clean(&step.text));
        let width = WIDTH - INDENT - time.chars().count() - 2;
        for (i, line) in wrapped(&text, width).iter().enumerate() {
            if i == 0 {
                *out += &format!("{label}  {time}  {}\n", self.color.paint(Tone::Key, line));
            } else {
                let pad = " ".repeat(INDENT + time.chars().count() + 2);
                *out += &format!("{pad}{}\n", self.color.paint(Tone::Key, line));
            }
        }
        if let (Some(tid), Some(call)) = (step.tid, &step.call) {
            let who =
                format!("thread {tid} \"{}\"", truncated(&clean(step.comm.as_deref().unwrap_or("")), 20));
            let result = step.result.as_ref().map(|result| format!(" = {result}")).unwrap_or_default();
            for line in wrapped(&format!("{who}: {}{result}", clean(call)), WIDTH - INDENT) {
                *out += &format!("     {}\n", self.color.paint(Tone::Dim, &line));
            }
        }
        if !self.stacks {
            return;
        }
        if let Some(stack) = step.stack.and_then(|k| self.explanation.stacks.get(usize::try_from(k).ok()?)) {
            frames(stack, TextOptions { color: self.color, top: 0 }, out);
        }
        match step.no_stack.as_deref() {
            Some("lost") => *out += "       (stack lost: the buffer was full)\n",
            Some(_) => *out += "       (the stack could not be read)\n",
            None => {}
        }
    }

    fn now(&self, out: &mut String) {
        let now = &self.explanation.now;
        out.push('\n');
        let when = match now.moment.as_str() {
            "exit" => "at its exit",
            "periodic" => "at the last snapshot before its end",
            "calls" => "in the end, according to the calls",
            // Of a recording that is long past.
            _ if self.explanation.traced => "when recording ended",
            _ => "now",
        };
        let label = self.color.paint(Tone::Heading, when);
        let state = match now.page.as_str() {
            "resident" => " · the page is resident",
            "swapped" => " · the page is swapped out",
            "purged" => " · the page was given back and not touched since",
            "untouched" => " · the page was never touched",
            "unknown" => " · whether the page is resident is not known",
            _ => "",
        };
        match &now.region {
            Some(region) => {
                let what = now.category_name.as_deref().unwrap_or(&region.category);
                *out += &format!("{label}: {}{state}\n", clean(what));
                self.region(now, region, out);
            }
            None if now.mapped => *out += &format!("{label}: mapped{state}\n"),
            None => *out += &format!("{label}: nothing is mapped there\n"),
        }
        self.neighbours(now, out);
    }

    fn region(&self, now: &Now, region: &Region, out: &mut String) {
        let mut parts = vec![
            format!("{}-{} {}", region.start, region.end, region.prot),
            size(region.virt),
            format!("{} resident", size(region.rss)),
        ];
        let known = region.category != "unknown";
        if known && !region.part.is_empty() {
            parts.push(clean(&region.part));
        }
        if let Some(thread) = region.thread {
            parts.push(format!("thread {thread}"));
        }
        if known {
            parts.push(format!("known by its {}", evidence(&region.evidence)));
        }
        if let Some(path) = &region.path {
            parts.push(clean(path));
        }
        let doubt = region.doubt.as_ref().map(|doubt| format!("in doubt: {}", clean(doubt)));
        parts.extend(doubt);
        for line in wrapped(&parts.join(" · "), WIDTH - INDENT) {
            *out += &format!("     {line}\n");
        }
        if let Some(why) = &now.why {
            for (i, line) in wrapped(&clean(why), WIDTH - INDENT - 6).iter().enumerate() {
                let label = if i == 0 { "why  " } else { "     " };
                *out += &format!("     {} {line}\n", self.color.paint(Tone::Dim, label));
            }
        }
    }

    fn neighbours(&self, now: &Now, out: &mut String) {
        let lines: Vec<String> = [("below", &now.below), ("above", &now.above)]
            .into_iter()
            .filter_map(|(side, neighbour)| Some((side, neighbour.as_ref()?)))
            .map(|(side, neighbour)| neighbour_line(side, neighbour))
            .collect();
        for line in lines {
            *out += &format!("     {}\n", self.color.paint(Tone::Dim, &truncated(&line, WIDTH - INDENT)));
        }
    }

    fn note(&self, text: &str, out: &mut String) {
        for (i, line) in wrapped(text, WIDTH - 11).iter().enumerate() {
            let label = if i == 0 { "note " } else { "     " };
            *out += &format!("     {} {line}\n", self.color.paint(Tone::Warning, label));
        }
    }
}

/// `below 0x7f…-0x7f… rw-p thread stacks, 12 KiB away`
fn neighbour_line(side: &str, neighbour: &Neighbour) -> String {
    let region = &neighbour.region;
    let away =
        if neighbour.gap == 0 { "adjacent".to_string() } else { format!("{} away", size(neighbour.gap)) };
    let base = region.path.as_deref().map(|path| path.rsplit('/').next().unwrap_or(path));
    let path = base.map(|base| format!(" ({})", clean(base))).unwrap_or_default();
    let line = |path: &str| {
        format!(
            "{side} {}-{} {} {}{path}, {}, {away}",
            region.start,
            region.end,
            region.prot,
            clean(&neighbour.category_name),
            size(region.virt)
        )
    };
    // Its distance says more than its file.
    Some(line(&path)).filter(|text| text.chars().count() <= WIDTH - INDENT).unwrap_or_else(|| line(""))
}

/// What the classification rests on.
fn evidence(word: &str) -> &str {
    match word {
        "stack" => "creating stack",
        "header" => "header in memory",
        "thread" => "thread's stack pointer",
        "kernel" => "kind (the kernel says so)",
        other => other,
    }
}

/// `0.000412`
fn seconds(ns: u64) -> String {
    let us = ns / 1000;
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}
