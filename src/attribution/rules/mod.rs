//! One file an allocator or runtime: how its mappings are recognised, what its parts are
//! called, why they are there, which knob makes them smaller. Nothing else in the tree names
//! one. To add one: write the file, list it in [`RULES`].
//!
//! The order of `RULES` matters only among rules on the same level of evidence: exact
//! addresses first, then the particular before the general.

mod app;
mod bionic;
pub mod data;
mod device;
mod dotnet;
mod files;
mod glibc;
pub(super) mod go;
mod javascriptcore;
mod jemalloc;
mod jvm;
mod kernel;
mod loader;
mod mimalloc;
mod musl;
mod named;
mod own;
mod peek;
mod pthread;
mod python;
mod ruby;
mod runs;
mod sanitizer;
mod sbcl;
mod shared;
mod svm;
mod tcmalloc;
pub mod translators;
mod v8;
mod valgrind;

use super::callpath::Line;
use super::category::UNKNOWN;
use super::category::{Category, Claim};
use super::code::Code;
use super::findings::{Advice, Fix, Group};
use super::world::{Subject, Surveyed, World};
use crate::ledger::Region;
use crate::model::arenas::ReadArenas;
use crate::model::headers::Headers;
use crate::model::heap::runtime::{BudgetQuery, ReadOwnHeap};
use crate::model::stack::{FindCodeTables, FindLeftStacks, GeneratedFunction, Interpreter};
use crate::model::{Addr, Sign};
use std::sync::LazyLock;

/// Where an option of a runtime's start line is put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placed {
    /// Into this variable, which is a list of options.
    Variable { name: &'static str, value: String },
    /// Behind the other arguments of the command.
    Argument,
}

/// How one allocator or runtime is recognised and explained. Every method may decline.
pub trait Rule: Sync {
    /// Short name, for tests and `-v`.
    fn id(&self) -> &'static str;

    /// All that it may claim.
    fn categories(&self) -> &'static [Category] {
        &[]
    }

    /// Its own code on stacks, for readers of them.
    fn code(&self) -> Code {
        Code::NONE
    }

    /// How files with code show that they hold it.
    fn signs(&self) -> &'static [Sign] {
        &[]
    }

    /// What it keeps in the process' own memory and needs read.
    fn headers(&self) -> &'static [Headers] {
        &[]
    }

    /// How its arenas are read, block by block.
    fn arenas(&self) -> Option<ReadArenas> {
        None
    }

    /// How its own record of allocating stacks is read.
    fn own_heap(&self) -> Option<ReadOwnHeap> {
        None
    }

    /// How the frames of its interpreter are found and shown.
    fn interpreter(&self) -> Option<Interpreter> {
        None
    }

    /// How the stacks are found that its threads leave for their own.
    fn left_stacks(&self) -> Option<FindLeftStacks> {
        None
    }

    /// How it is queried for what it has reserved and committed, and for what.
    fn own_budget(&self) -> Option<BudgetQuery> {
        None
    }

    /// The built-in description (docs/heap.md) of the functions that hand out what the categories hold.
    fn heap_description(&self) -> Option<&'static str> {
        None
    }

    /// What it hands out of its mappings itself, so that those who count an allocator's calls do not see it.
    fn own_blocks(&self) -> Option<OwnBlocks> {
        None
    }

    /// What its compiler calls a function that it has made, in a perf map (`/tmp/perf-PID.map`), in parts.
    fn generated_function(&self, _entry: &str) -> Option<GeneratedFunction> {
        None
    }

    /// How the tables are found that it keeps of the code that it makes, and a variable by which a file shows that
    /// it has them.
    fn code_tables(&self) -> Option<(&'static str, FindCodeTables)> {
        None
    }

    /// Environment variables that are lists of options: how their names end, and what separates options.
    fn option_lists(&self) -> &'static [(&'static str, char)] {
        &[]
    }

    /// What in a process' limits and environment affects these categories: a variable's name (how it ends),
    /// or `threads`, `stack limit`, `processors`, `memory`. Where two processes differ in it, their memory in
    /// these may.
    fn surroundings(&self) -> &'static [(&'static str, &'static [&'static str])] {
        &[]
    }

    /// Where this option of the runtime's start line counts if it is given from outside, whatever options the
    /// process was `started` with.
    fn place(&self, _option: &str, _started: &[String]) -> Option<Placed> {
        None
    }

    /// The kernel's or the program's own name for the mapping.
    fn by_name(&self, _subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        world.not_for_me()
    }

    /// True if this line of a stack is this rule's code; `by_stack` is then called, innermost line first.
    fn knows(&self, _line: &Line) -> bool {
        false
    }

    /// The same, where what is known is part of the process' audit.
    fn knows_here(&self, line: &Line, _world: &World<'_>) -> bool {
        self.knows(line)
    }

    /// The creating stack has a line that `knows` recognised: `at`.
    fn by_stack(&self, _subject: &Subject<'_>, _world: &World<'_>, _at: usize) -> Option<Claim> {
        None
    }

    /// Structures read from memory, and addresses that are the runtime's alone.
    fn by_header(&self, _subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        world.not_for_me()
    }

    /// Stack pointers of threads.
    fn by_thread(&self, _subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        world.not_for_me()
    }

    /// Size, alignment, protection, neighbours.
    fn by_shape(&self, _subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        world.not_for_me()
    }

    /// What the mappings of the process show when they are examined together: ranges, sorted and disjoint.
    /// Made once, before anything is classified; `by_shape` finds it with [`World::surveyed`].
    fn survey(&self, _world: &World<'_>) -> Vec<Surveyed> {
        Vec::new()
    }

    /// When no other rule claims it.
    fn as_last(&self, _subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        world.not_for_me()
    }

    /// Addresses inside a region at which one thing ends and another begins.
    fn cuts(&self, _region: &Region, world: &World<'_>) -> Vec<Addr> {
        world.not_for_me().unwrap_or_default()
    }

    /// The name of the malloc replacement that this rule is about, if the process has it.
    fn allocator_in(&self, _world: &World<'_>) -> Option<&'static str> {
        None
    }

    /// The setting by which the runtime that this rule is about sizes the stacks of its threads, if
    /// the process has it: (knob, note).
    fn stack_size_knob(&self, _world: &World<'_>) -> Option<(String, String)> {
        None
    }

    /// What stacks of no thread are, of these sizes, to the runtime that this rule is about, if they are its.
    fn fibres(&self, _group: &Group<'_>, _sizes: &[u64], _world: &World<'_>) -> Option<Fibres> {
        None
    }

    /// Adds to another rule's advice what it knows of the code that requested the memory; returns the id of
    /// what it uses.
    fn explain(&self, _group: &Group<'_>, _world: &World<'_>, _advice: &mut Advice) -> Option<String> {
        None
    }

    /// Why it is there and what to do, for users who do not know mmap.
    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice;
}

/// Runtimes that keep tables of the code that they make: a variable that a file with such a runtime exports, and how
/// the tables are found.
pub fn code_tables() -> impl Iterator<Item = (&'static str, FindCodeTables)> {
    RULES.iter().filter_map(|rule| rule.code_tables())
}

/// The parts of a line of a perf map; None where no rule knows them, as of a runtime's own code.
pub fn generated_function(entry: &str) -> Option<GeneratedFunction> {
    RULES.iter().find_map(|rule| rule.generated_function(entry))
}

/// A runtime's stacks that are no thread's.
pub struct Fibres {
    /// Whose they are, plural.
    pub whose: &'static str,
    /// A clause that goes on after how large they are.
    pub why: &'static str,
    pub fix: Fix,
}

/// All rules, see the module's comment on their order.
pub static RULES: &[&dyn Rule] = &[
    &kernel::KernelRule,
    &own::OwnRule,
    &sanitizer::SanitizerRule,
    &valgrind::ValgrindRule,
    &device::DeviceRule,
    &kernel::buffer::KernelBufferRule,
    &go::GoRule,
    &v8::V8Rule,
    &jvm::JvmRule,
    &python::PythonRule,
    &ruby::RubyRule,
    &javascriptcore::JavaScriptCoreRule,
    &dotnet::DotnetRule,
    &svm::SvmRule,
    &sbcl::SbclRule,
    &pthread::PthreadRule,
    &jemalloc::JemallocRule,
    &tcmalloc::TcmallocRule,
    &mimalloc::MimallocRule,
    &musl::MuslRule,
    &bionic::BionicRule,
    &glibc::GlibcRule,
    &named::NamedRule,
    &loader::LoaderRule,
    &shared::SharedRule,
    &files::FilesRule,
    &data::DataRule,
    &app::AppRule,
];

/// What a category is called, by its id; None for one that this version does not know.
pub fn category_name(id: &str) -> Option<&'static str> {
    let mut all = RULES.iter().flat_map(|rule| rule.categories());
    all.find(|category| category.id == id).map(|category| category.name)
}

/// What files with code are searched for.
pub fn signs() -> &'static [Sign] {
    static ALL: LazyLock<Vec<Sign>> =
        LazyLock::new(|| RULES.iter().flat_map(|rule| rule.signs()).copied().collect());
    &ALL
}

/// What allocators keep in a process' own memory.
pub fn heap_headers() -> &'static [Headers] {
    static ALL: LazyLock<Vec<Headers>> =
        LazyLock::new(|| RULES.iter().flat_map(|rule| rule.headers()).copied().collect());
    &ALL
}

/// Allocators whose arenas can be read: the rule's name, and how.
pub fn arena_readers() -> impl Iterator<Item = (&'static str, ReadArenas)> {
    RULES.iter().filter_map(|rule| Some((rule.id(), rule.arenas()?)))
}

/// Runtimes with their own record of allocating stacks: the rule's name, and how it is read.
pub fn own_heap_readers() -> impl Iterator<Item = (&'static str, ReadOwnHeap)> {
    RULES.iter().filter_map(|rule| Some((rule.id(), rule.own_heap()?)))
}

/// Interpreters whose frames can be read.
pub fn interpreters() -> impl Iterator<Item = Interpreter> {
    RULES.iter().filter_map(|rule| rule.interpreter())
}

/// Runtimes whose callers are on other stacks than the thread's own.
pub fn left_stacks() -> impl Iterator<Item = FindLeftStacks> {
    RULES.iter().filter_map(|rule| rule.left_stacks())
}

/// Runtimes that report their own memory categories on request.
pub fn budgets() -> impl Iterator<Item = BudgetQuery> {
    RULES.iter().filter_map(|rule| rule.own_budget())
}

/// The built-in description whose functions hand out what a category holds.
pub fn heap_description_of(category: &str) -> Option<&'static str> {
    let rule = RULES.iter().find(|rule| rule.categories().iter().any(|own| own.id == category))?;
    rule.heap_description()
}

/// Blocks that a runtime hands out itself: no call of an allocator stands for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnBlocks {
    pub category: &'static str,
    /// The part of such mappings that the blocks are in.
    pub part: &'static str,
    /// Begins a sentence.
    pub what: &'static str,
    /// With this in its environment, the runtime calls the allocator for each.
    pub counted_by: &'static str,
}

/// All of them.
pub fn own_blocks() -> impl Iterator<Item = OwnBlocks> {
    RULES.iter().filter_map(|rule| rule.own_blocks())
}

/// How a variable that is a list of options separates them.
pub fn option_separator(variable: &str) -> Option<char> {
    let mut lists = RULES.iter().flat_map(|rule| rule.option_lists());
    lists.find(|(end, _)| variable.ends_with(end)).map(|(_, separator)| *separator)
}

/// Environment variables that are lists of options of a runtime's start line, and what separates these.
pub fn option_lists() -> impl Iterator<Item = (&'static str, char)> {
    RULES.iter().flat_map(|rule| rule.option_lists()).copied()
}

/// The categories that a limit or variable affects ([`Rule::surroundings`]).
pub fn bears_on(what: &str) -> Vec<&'static str> {
    let all = RULES.iter().flat_map(|rule| rule.surroundings());
    let mut found: Vec<&str> =
        all.filter(|(name, _)| what.ends_with(name)).flat_map(|(_, ids)| ids.iter().copied()).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Where an option of some runtime's start line counts ([`Rule::place`]).
pub fn place_option(option: &str, started: &[String]) -> Option<Placed> {
    RULES.iter().find_map(|rule| rule.place(option, started))
}

/// For categories that this version does not know.
const MORE: [u32; 4] = [0x2f8fa8, 0x9b7a2f, 0x8c6bb5, 0x4f8f5f];

/// `0xRRGGBB`, by a category's id.
pub fn category_color(id: &str) -> u32 {
    let mut all = RULES.iter().flat_map(|rule| rule.categories()).chain([&UNKNOWN]);
    let known = all.find(|category| category.id == id).map(|category| category.color);
    known.unwrap_or_else(|| MORE[id.bytes().map(usize::from).sum::<usize>() % MORE.len()])
}
