//! Reports to make flame graphs of, and what reads these.

use crate::saved;
use flate2::read::GzDecoder;
use proptest::prelude::*;
use prost::Message;
use quick_xml::Reader;
use quick_xml::events::Event;
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use vmaudit::render::pprof::proto::Profile;
use vmaudit::report::model::{CategoryRow, Frame, Origin, Process, Region, Stack, Totals};
use vmaudit::report::{Report, RunFacts};

pub const CATEGORIES: [&str; 5] = ["glibc-arena", "loader", "file", "unknown", "one of tomorrow"];
const PROTS: [&str; 4] = ["rw-p", "r--p", "---p", "rw-s"];
/// What may be in a name: separators, quotes, ends of elements, values, what XML has no way to say.
const NAMES: [&str; 12] = [
    "f<[u8; 8]>::call(int, char)",
    "a\nb",
    "x 12",
    "# 5",
    "]]></title><script>alert(1)</script>",
    "&amp; \" y=\"16\" fg:x=\"3\" '",
    " ",
    "nul\0 esc\u{1b}[31m",
    "\u{fffe}\u{ffff}\u{202e}rtl",
    "漢字 👍",
    "_[k]",
    "main (in) parentheses (",
];
const PATHS: [Option<&str>; 5] =
    [None, Some("/lib/libc.so.6"), Some("/data/x;y 7 (deleted)"), Some("[heap]"), Some("/tmp/\u{ffff}<a&b>")];

/// (pages before it, pages, resident, swapped, prot, category, stack, path)
pub type Piece = (u64, u64, u64, u64, usize, usize, Option<u64>, usize);

fn name(at: u64) -> String {
    NAMES[at as usize % NAMES.len()].to_owned()
}

fn process(pid: i32, pieces: &[Piece]) -> Process {
    let mut at = 0x10_0000u64;
    let mut totals = Totals::default();
    let mut regions = Vec::new();
    for (i, &(gap, pages, rss, swap, prot, category, stack, path)) in pieces.iter().enumerate() {
        let start = at + gap * 4096;
        let virt = pages * 4096;
        let rss = rss.min(pages) * 4096;
        let swap = (swap * 4096).min(virt - rss);
        at = start + virt;
        totals.virt += virt;
        totals.rss += rss;
        totals.swap += swap;
        totals.writable += if PROTS[prot].contains('w') { virt } else { 0 };
        let origin = |k| Origin {
            op: "mmap".into(),
            // 7: a stack that was lost
            stack: Some(k).filter(|k| *k != 6),
            comm: name(k),
            tid: k as i32,
            inherited_from: (k == 3).then_some(1),
            ..Origin::default()
        };
        regions.push(Region {
            start: format!("{start:#x}"),
            end: format!("{at:#x}"),
            prot: PROTS[prot].to_owned(),
            category: CATEGORIES[category].to_owned(),
            virt,
            rss,
            swap,
            path: PATHS[path].map(str::to_owned),
            origin: stack.map(origin),
            instance: i as u64 / 2,
            ..Region::default()
        });
    }
    totals.unused = totals.virt - totals.rss - totals.swap;
    Process {
        pid,
        comm: name(pid as u64),
        totals,
        regions,
        categories: vec![CategoryRow {
            id: "file".into(),
            name: "mapped; files <&> 3".into(),
            ..CategoryRow::default()
        }],
        residency: if pid % 7 == 0 { "none".into() } else { "pagemap".into() },
        ..Process::default()
    }
}

/// `build` distinguishes the builds of its modules.
pub fn random_report(processes: &[Vec<Piece>], first_pid: i32, build: u8) -> Report {
    let frame = |module: &str, offset: u64| Frame {
        module: module.to_owned(),
        build_id: (build < 3).then(|| format!("{build}")),
        offset: format!("{offset:#x}"),
        symbol: offset.is_multiple_of(2).then(|| name(offset)),
        inlined: offset.is_multiple_of(5),
        file: offset.is_multiple_of(3).then(|| name(offset + 1)),
        line: Some(7),
        function_start: offset.is_multiple_of(7).then(|| "0x7".to_owned()),
        ..Frame::default()
    };
    let stack = |k: u64| Stack {
        frames: (0..k % 5)
            .map(|i| frame(["a", "b;c d", "[unknown]"][i as usize % 3], (i + 1) * k))
            .map(Arc::new)
            .collect(),
        completeness: ["complete", "truncated", "incomplete"][k as usize % 3].to_owned(),
        ..Stack::default()
    };
    Report {
        schema: 1,
        backend: "bpf".to_owned(),
        processes: processes.iter().zip(first_pid..).map(|(pieces, pid)| process(pid, pieces)).collect(),
        stacks: (0..8).map(stack).collect(),
        ..Report::default()
    }
}

/// Stack 8 is one that the report does not have.
pub fn processes() -> impl Strategy<Value = Vec<Vec<Piece>>> {
    let piece = (
        0..3u64,
        1..200u64,
        0..100u64,
        0..50u64,
        0..PROTS.len(),
        0..CATEGORIES.len(),
        proptest::option::of(0..9u64),
        0..PATHS.len(),
    );
    prop::collection::vec(prop::collection::vec(piece, 0..30), 1..4)
}

/// A saved smaps file as a report.
pub fn capture(path: &Path) -> Report {
    let run = RunFacts { backend: "snapshot".into(), ..RunFacts::default() };
    saved::capture(path, "captured", &run)
}

/// A profile, and the names of its value types.
pub struct Decoded {
    pub profile: Profile,
    pub types: Vec<String>,
}

/// Reads a profile, and proves what pprof's CheckValid does: ids are there and unique, each sample has as
/// many values as there are types, and the first string is empty.
pub fn decode(compressed: &[u8]) -> Decoded {
    let mut bytes = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut bytes).expect("gzip");
    let profile = Profile::decode(bytes.as_slice()).expect("profile.proto");
    let strings = profile.string_table.len() as i64;
    assert_eq!(profile.string_table.first().map(String::as_str), Some(""));
    let string = |at: i64| assert!((0..strings).contains(&at), "no string {at}");
    let ids = |ids: Vec<u64>| {
        let set: HashSet<u64> = ids.iter().copied().collect();
        assert!(set.len() == ids.len() && !set.contains(&0));
        set
    };
    let mappings = ids(profile.mapping.iter().map(|m| m.id).collect());
    let locations = ids(profile.location.iter().map(|l| l.id).collect());
    let functions = ids(profile.function.iter().map(|f| f.id).collect());
    for pair in profile.mapping.windows(2) {
        let apart =
            pair[0].memory_limit <= pair[1].memory_start || pair[1].memory_limit <= pair[0].memory_start;
        assert!(apart, "{pair:?}");
    }
    for mapping in &profile.mapping {
        string(mapping.filename);
        string(mapping.build_id);
        assert!(mapping.memory_start < mapping.memory_limit);
    }
    for location in &profile.location {
        assert!(
            !location.line.is_empty() && location.line.iter().all(|l| functions.contains(&l.function_id))
        );
        if location.mapping_id != 0 {
            assert!(mappings.contains(&location.mapping_id));
            let mapping = profile.mapping.iter().find(|m| m.id == location.mapping_id).expect("a mapping");
            assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address), "{location:?}");
        }
    }
    for sample in &profile.sample {
        assert_eq!(sample.value.len(), profile.sample_type.len());
        assert!(!sample.location_id.is_empty() && sample.location_id.iter().all(|id| locations.contains(id)));
        sample.label.iter().for_each(|label| {
            string(label.key);
            string(label.str);
        });
    }
    profile.function.iter().for_each(|f| string(f.name));
    let types: Vec<String> =
        profile.sample_type.iter().map(|t| profile.string_table[t.r#type as usize].clone()).collect();
    assert!(types.contains(&profile.string_table[profile.default_sample_type as usize]), "{types:?}");
    Decoded { profile, types }
}

/// The tooltips of an SVG document, which has to be well-formed.
pub fn titles(svg: &str) -> Vec<String> {
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert_eq!(svg.chars().find(|c| !allowed(*c)), None, "no character of XML 1.0");
    let mut reader = Reader::from_str(svg);
    reader.config_mut().check_end_names = true;
    let (mut titles, mut inside, mut depth) = (Vec::new(), false, 0);
    loop {
        match reader.read_event().unwrap_or_else(|e| panic!("at {}: {e}", reader.buffer_position())) {
            Event::Start(tag) => {
                depth += 1;
                inside = tag.name().as_ref() == b"title";
                if inside {
                    titles.push(String::new());
                }
                assert!(tag.attributes().all(|a| a.is_ok()), "{tag:?}");
                assert!(tag.name().as_ref() != b"script" || titles.is_empty(), "a script out of a name");
            }
            Event::End(_) => {
                depth -= 1;
                inside = false;
            }
            Event::Text(text) if inside => {
                titles.last_mut().expect("a title").push_str(&text.decode().expect("UTF-8"));
            }
            Event::GeneralRef(entity) if inside => {
                let c = match entity.decode().expect("UTF-8").as_ref() {
                    "amp" => '&',
                    "lt" => '<',
                    "gt" => '>',
                    "quot" => '"',
                    "apos" => '\'',
                    other => panic!("&{other};"),
                };
                titles.last_mut().expect("a title").push(c);
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0, "elements are open at the end");
    titles
}
