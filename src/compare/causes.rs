//! The owners of the bytes of a run, under names that are the same in every run: a category, and in it the
//! stack that requested it as module + offset, or the file, or the part.

use super::model::{CategoryChange, CauseChange, Footprints};
use crate::report::Report;
use crate::report::model::{Frame, Process, Region, Role, Stack};
use crate::report::number::change;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes of all regions with one owner.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cause {
    pub category: String,
    pub category_name: String,
    /// The same in each run of the same programs, wherever they are loaded.
    pub identity: String,
    pub title: String,
    /// Innermost first: `module function`.
    pub stack: Vec<String>,
    pub virt: u64,
    pub rss: u64,
}

/// Functions in a title.
const NAMED: usize = 3;

/// Every byte of the report's regions, once.
pub fn causes(report: &Report) -> Vec<Cause> {
    let mut found: BTreeMap<(String, String), Cause> = BTreeMap::new();
    for process in &report.processes {
        let names: HashMap<&str, &str> =
            process.categories.iter().map(|row| (row.id.as_str(), row.name.as_str())).collect();
        let files = files_of_instances(process);
        for region in &process.regions {
            let stack = stack_of(report, region);
            let file = region.path.as_deref().or_else(|| files.get(&region.instance).copied());
            let identity = identity(region, stack, file);
            let cause = found.entry((region.category.clone(), identity)).or_insert_with_key(|key| Cause {
                category: region.category.clone(),
                category_name: names
                    .get(region.category.as_str())
                    .map_or(&*region.category, |n| n)
                    .to_owned(),
                identity: key.1.clone(),
                title: title(region, stack, file),
                stack: stack.map(lines).unwrap_or_default(),
                virt: 0,
                rss: 0,
            });
            cause.virt = cause.virt.saturating_add(region.virt);
            cause.rss = cause.rss.saturating_add(region.rss);
        }
    }
    found.into_values().collect()
}

/// What the kernel mapped for an image has no stack, and what the loader mapped has one that says
/// little: for both, and for mapped files, the file is the cause.
fn is_file(region: &Region) -> bool {
    region.category == "loader" || region.category == "file"
}

/// A library's anonymous part belongs to the library.
fn files_of_instances(process: &Process) -> HashMap<u64, &str> {
    let mut files = HashMap::new();
    for region in process.regions.iter().filter(|region| is_file(region)) {
        if let Some(path) = &region.path {
            files.entry(region.instance).or_insert(path.as_str());
        }
    }
    files
}

fn stack_of<'a>(report: &'a Report, region: &Region) -> Option<&'a Stack> {
    let number = region.origin.as_ref()?.stack?;
    report.stacks.get(usize::try_from(number).ok()?).filter(|stack| !stack.frames.is_empty())
}

fn identity(region: &Region, stack: Option<&Stack>, file: Option<&str>) -> String {
    match (is_file(region), stack, file) {
        (true, _, Some(file)) => format!("file {file}"),
        (_, Some(stack), _) => {
            let frames = requesting(stack).iter().filter(|frame| !frame.inlined);
            frames.map(|frame| format!("{}+{};", frame.module, frame.offset)).collect()
        }
        (_, None, _) => format!("part {} {}", region.part, special_name(region)),
    }
}

/// `[stack]`, `[anon: name]`: not an address, so it is the same in each run.
fn special_name(region: &Region) -> &str {
    region.path.as_deref().filter(|path| path.starts_with('[')).unwrap_or_default()
}

fn title(region: &Region, stack: Option<&Stack>, file: Option<&str>) -> String {
    match (is_file(region), stack, file) {
        (true, _, Some(file)) => file.rsplit('/').next().unwrap_or(file).to_owned(),
        (_, Some(stack), _) => outline(stack),
        (_, None, _) if !region.part.is_empty() => region.part.clone(),
        (_, None, _) => special_name(region).to_owned(),
    }
}

/// `fopen < reader < main`: the function that requested the memory, and its callers from the inside out; of
/// the C library only the function that the program called.
fn outline(stack: &Stack) -> String {
    let outside = requesting(stack);
    let first = outside.iter().position(|frame| !frame.in_system_library()).unwrap_or(outside.len());
    let (inside, program) = outside.split_at(first);
    let library = inside.iter().rev().find_map(named);
    let program = program.iter().filter(|frame| !frame.in_system_library()).filter_map(named);
    let names: Vec<&str> = library.into_iter().chain(program).take(NAMED).collect();
    if !names.is_empty() {
        return names.join(" < ");
    }
    // An allocator on its own account, when it sets itself up.
    let own = stack.frames.iter().filter(|frame| !frame.in_system_library());
    if let Some(name) = own.clone().filter_map(named).next_back() {
        return name.to_owned();
    }
    let places: Vec<String> = own.take(2).map(|frame| format!("{}+{}", frame.module, frame.offset)).collect();
    match places.is_empty() {
        true => stack.frames.iter().rev().find_map(|frame| frame.symbol.clone()).unwrap_or_default(),
        false => places.join(" < "),
    }
}

/// The frames of the code that requested the memory, without those of the allocator, which takes other paths
/// with other settings.
fn requesting(stack: &Stack) -> &[Arc<Frame>] {
    let entry = stack.frames.iter().rposition(|frame| frame.role == Role::Allocator);
    let outside = entry.and_then(|at| stack.frames.get(at + 1..)).filter(|frames| !frames.is_empty());
    outside.unwrap_or(&stack.frames)
}

/// A name that says something: not the call's wrapper, nor where threads and programs begin.
fn named(frame: &Arc<Frame>) -> Option<&str> {
    frame.symbol.as_deref().filter(|_| !matches!(frame.role, Role::Wrapper | Role::Start))
}

fn lines(stack: &Stack) -> Vec<String> {
    let name = |frame: &Frame| frame.symbol.clone().unwrap_or_else(|| format!("+{}", frame.offset));
    stack.frames.iter().map(|frame| format!("{} {}", frame.module, name(frame))).collect()
}

/// The causes of two runs side by side: every category, the largest change first, and in each the
/// causes that differ.
pub fn changes(before: &[Cause], after: &[Cause]) -> Vec<CategoryChange> {
    let mut pairs: BTreeMap<(&str, &str), [Option<&Cause>; 2]> = BTreeMap::new();
    for (side, causes) in [before, after].into_iter().enumerate() {
        for cause in causes {
            pairs.entry((&cause.category, &cause.identity)).or_default()[side] = Some(cause);
        }
    }
    let mut rows: BTreeMap<&str, CategoryChange> = BTreeMap::new();
    for ((category, _), pair) in pairs {
        let Some(any) = pair[0].or(pair[1]) else { continue };
        let row = rows.entry(category).or_insert_with(|| CategoryChange {
            id: category.to_owned(),
            name: any.category_name.clone(),
            ..CategoryChange::default()
        });
        let of = |get: fn(&Cause) -> u64| pair.map(|cause| cause.map_or(0, get));
        let size = Footprints { virt: of(|cause| cause.virt), rss: of(|cause| cause.rss) };
        row.size.add(size);
        if size.virt[0] != size.virt[1] || size.rss[0] != size.rss[1] {
            let (title, stack) = (any.title.clone(), any.stack.clone());
            row.causes.push(CauseChange { title, size, stack });
        }
    }
    let mut rows: Vec<CategoryChange> = rows.into_values().collect();
    for row in &mut rows {
        row.causes.sort_by_key(|cause| std::cmp::Reverse(cause.size.weight()));
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.size.weight()));
    rows
}

impl Footprints {
    pub fn add(&mut self, other: Footprints) {
        for side in 0..2 {
            self.virt[side] = self.virt[side].saturating_add(other.virt[side]);
            self.rss[side] = self.rss[side].saturating_add(other.rss[side]);
        }
    }

    pub fn virt_change(&self) -> i64 {
        change(self.virt[0], self.virt[1])
    }

    pub fn rss_change(&self) -> i64 {
        change(self.rss[0], self.rss[1])
    }

    /// Of VIRT or of RSS.
    pub fn largest_change(&self) -> u64 {
        self.virt_change().unsigned_abs().max(self.rss_change().unsigned_abs())
    }

    /// How much there is to see of it.
    fn weight(&self) -> (u64, u64, u64) {
        let (virt, rss) = (self.virt_change().unsigned_abs(), self.rss_change().unsigned_abs());
        (virt.max(rss), virt.min(rss), self.virt[0].max(self.virt[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{CategoryRow, Origin};

    fn frame(module: &str, offset: &str, symbol: Option<&str>) -> Frame {
        Frame {
            module: module.into(),
            offset: offset.into(),
            symbol: symbol.map(str::to_owned),
            ..Frame::default()
        }
    }

    fn region(category: &str, virt: u64, stack: Option<u64>) -> Region {
        let origin = stack.map(|k| Origin { stack: Some(k), ..Origin::default() });
        Region { category: category.into(), virt, rss: virt / 4, origin, ..Region::default() }
    }

    fn report(regions: Vec<Region>) -> Report {
        let frames = vec![
            frame("libc.so.6", "0x1", Some("__mmap")),
            frame("libc.so.6", "0x6", Some("malloc")),
            frame("libc.so.6", "0x2", Some("fopen")),
            frame("prog", "0x3", Some("reader")),
            frame("libc.so.6", "0x5", Some("start_thread")),
        ];
        let stack = Stack::new(frames, "complete");
        let categories = vec![CategoryRow {
            id: "glibc-arena".into(),
            name: "glibc malloc arenas".into(),
            ..Default::default()
        }];
        let process = Process { categories, regions, ..Process::default() };
        Report { processes: vec![process], stacks: vec![stack], ..Report::default() }
    }

    #[test]
    fn one_stack_is_one_cause_and_nothing_is_lost() {
        let regions = vec![
            region("glibc-arena", 100, Some(0)),
            region("glibc-arena", 20, Some(0)),
            region("kernel", 4, None),
            region("glibc-arena", 1, Some(99)),
        ];
        let found = causes(&report(regions));
        assert_eq!(found.iter().map(|c| c.virt).sum::<u64>(), 125);
        let arena = found.iter().find(|c| c.virt == 120).expect("both regions together");
        assert_eq!(arena.title, "fopen < reader");
        assert_eq!(arena.category_name, "glibc malloc arenas");
    }

    #[test]
    fn titles_name_the_requesting_function() {
        let of = |names: &[(&str, &str)]| {
            let frames = names
                .iter()
                .map(|(module, name)| frame(module, "0x10", Some(name).filter(|n| !n.is_empty()).copied()));
            outline(&Stack::new(frames.collect(), "complete"))
        };
        let (c, p) = ("libc.so.6", "prog");
        assert_eq!(
            of(&[(c, "__mmap"), (p, "os_pages_map"), (p, "je_malloc_default"), (p, "main"), (p, "_start")]),
            "main"
        );
        assert_eq!(of(&[(c, "mmap"), (c, "free"), (p, "freer"), (c, "start_thread")]), "freer");
        assert_eq!(of(&[(c, "mmap"), (c, "malloc"), (c, "fopen"), (p, "reader")]), "fopen < reader");
        assert_eq!(of(&[(c, "mmap64"), (p, "map_it"), (p, "main")]), "map_it < main");
        assert_eq!(
            of(&[(c, "mmap"), ("libjemalloc.so.2", ""), (p, "")]),
            "libjemalloc.so.2+0x10 < prog+0x10"
        );
        assert_eq!(of(&[(c, "mmap")]), "mmap");
        assert_eq!(
            of(&[(p, "base_new"), (p, "malloc_init_hard"), (c, "__libc_start_main"), (p, "_start")]),
            "malloc_init_hard"
        );
    }

    #[test]
    fn a_librarys_unnamed_part_belongs_to_it() {
        let library = Region { path: Some("/lib/liba.so".into()), ..region("loader", 8, None) };
        let bss = Region { instance: 0, ..region("loader", 2, Some(0)) };
        let found = causes(&report(vec![library, bss]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].title.as_str(), found[0].virt), ("liba.so", 10));
    }

    #[test]
    fn changes_add_up_and_the_largest_comes_first() {
        let before = causes(&report(vec![region("glibc-arena", 100, Some(0)), region("kernel", 4, None)]));
        let after = causes(&report(vec![region("kernel", 8, None), region("app-mmap", 40, Some(0))]));
        let rows = changes(&before, &after);
        let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids, ["glibc-arena", "app-mmap", "kernel"]);
        assert_eq!(rows.iter().map(|row| row.size.virt_change()).sum::<i64>(), 48 - 104);
        assert_eq!(rows[0].causes[0].size.virt, [100, 0]);
        assert!(changes(&before, &before).iter().all(|row| row.causes.is_empty()));
    }
}
