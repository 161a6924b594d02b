//! One file an allocator or runtime: how its mappings are recognised, what its parts are
//! called, why they are there, which knob makes them smaller. Nothing else in the tree names
//! one. To add one: write the file, list it in [`RULES`].
//!
//! The order of `RULES` matters only among rules on the same level of evidence: exact
//! addresses first, then the particular before the general.

mod app;
mod bionic;
mod device;
mod files;
mod glibc;
mod go;
mod jemalloc;
mod jvm;
mod kernel;
mod loader;
mod mimalloc;
mod musl;
mod named;
mod pthread;
mod python;
mod runs;
mod sanitizer;
mod shared;
mod tcmalloc;
mod v8;
mod valgrind;

use super::callpath::Line;
use super::category::UNKNOWN;
use super::category::{Category, Claim};
use super::code::Code;
use super::findings::{Advice, Group};
use super::world::{Subject, Surveyed, World};
use crate::ledger::Region;
use crate::model::headers::Headers;
use crate::model::{Addr, Sign};
use std::sync::LazyLock;

/// How one allocator or runtime is recognised and explained. Every method may decline.
pub trait Rule: Sync {
    /// Short name, for tests and `-v`.
    fn id(&self) -> &'static str;

    /// All that it may claim.
    fn categories(&self) -> &'static [Category];

    /// Its own code on stacks, for readers of them.
    fn code(&self) -> Code {
        Code::NONE
    }

    /// How files with code show that they hold it.
    fn signs(&self) -> &'static [Sign] {
        &[]
    }

    /// What it keeps in the process' own memory and wants read.
    fn headers(&self) -> Option<Headers> {
        None
    }

    /// The built-in description (docs/heap.md) of the functions that hand out what the categories hold.
    fn heap_description(&self) -> Option<&'static str> {
        None
    }

    /// Environment variables that are lists of options: how their names end, and what separates options.
    fn option_lists(&self) -> &'static [(&'static str, char)] {
        &[]
    }

    /// The variable that takes this option of the runtime's start line.
    fn variable_of(&self, _option: &str) -> Option<&'static str> {
        None
    }

    /// The kernel's or the program's own name for the mapping.
    fn by_name(&self, _subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        None
    }

    /// True if this line of a stack is this rule's code; `by_stack` is then asked, innermost
    /// line first.
    fn knows(&self, _line: &Line) -> bool {
        false
    }

    /// The creating stack has a line that `knows` recognised: `at`.
    fn by_stack(&self, _subject: &Subject<'_>, _world: &World<'_>, _at: usize) -> Option<Claim> {
        None
    }

    /// Structures read from memory, and addresses that are the runtime's alone.
    fn by_header(&self, _subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        None
    }

    /// Stack pointers of threads.
    fn by_thread(&self, _subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        None
    }

    /// Size, alignment, protection, neighbours.
    fn by_shape(&self, _subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        None
    }

    /// What the mappings of the process tell when they are looked at together: ranges, sorted and
    /// disjoint. Made once, before anything is classified; `by_shape` finds it with
    /// [`World::surveyed`].
    fn survey(&self, _world: &World<'_>) -> Vec<Surveyed> {
        Vec::new()
    }

    /// When nobody else wants it.
    fn as_last(&self, _subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        None
    }

    /// Addresses inside a region at which one thing ends and another begins.
    fn cuts(&self, _region: &Region, _world: &World<'_>) -> Vec<Addr> {
        Vec::new()
    }

    /// The name of the malloc replacement that this rule is about, if the process has it.
    fn allocator_in(&self, _world: &World<'_>) -> Option<&'static str> {
        None
    }

    /// The setting by which the runtime that this rule is about sizes the stacks of its threads, if
    /// the process has it: (knob, note).
    fn stack_size_knob(&self, _world: &World<'_>) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Why it is there and what to do, for somebody who does not know mmap.
    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice;
}

/// All rules, see the module's comment on their order.
pub static RULES: &[&dyn Rule] = &[
    &kernel::KernelRule,
    &sanitizer::SanitizerRule,
    &valgrind::ValgrindRule,
    &device::DeviceRule,
    &kernel::buffer::KernelBufferRule,
    &go::GoRule,
    &v8::V8Rule,
    &jvm::JvmRule,
    &python::PythonRule,
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
        LazyLock::new(|| RULES.iter().filter_map(|rule| rule.headers()).collect());
    &ALL
}

/// The built-in description whose functions hand out what a category holds.
pub fn heap_description_of(category: &str) -> Option<&'static str> {
    let rule = RULES.iter().find(|rule| rule.categories().iter().any(|own| own.id == category))?;
    rule.heap_description()
}

/// How a variable that is a list of options separates them.
pub fn option_separator(variable: &str) -> Option<char> {
    let mut lists = RULES.iter().flat_map(|rule| rule.option_lists());
    lists.find(|(end, _)| variable.ends_with(end)).map(|(_, separator)| *separator)
}

/// The variable that takes an option of some runtime's start line.
pub fn variable_of_option(option: &str) -> Option<&'static str> {
    RULES.iter().find_map(|rule| rule.variable_of(option))
}

/// For categories that this version does not know.
const MORE: [u32; 4] = [0x2f8fa8, 0x9b7a2f, 0x8c6bb5, 0x4f8f5f];

/// `0xRRGGBB`, by a category's id.
pub fn category_color(id: &str) -> u32 {
    let mut all = RULES.iter().flat_map(|rule| rule.categories()).chain([&UNKNOWN]);
    let known = all.find(|category| category.id == id).map(|category| category.color);
    known.unwrap_or_else(|| MORE[id.bytes().map(usize::from).sum::<usize>() % MORE.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In linear light.
    fn channels(color: u32) -> [f64; 3] {
        let linear = |byte: u8| match f64::from(byte) / 255.0 {
            c if c <= 0.04045 => c / 12.92,
            c => ((c + 0.055) / 1.055).powf(2.4),
        };
        let [_, r, g, b] = color.to_be_bytes();
        [r, g, b].map(linear)
    }

    fn weighed([r, g, b]: [f64; 3], by: [f64; 3]) -> f64 {
        r * by[0] + g * by[1] + b * by[2]
    }

    fn luminance(color: u32) -> f64 {
        weighed(channels(color), [0.2126, 0.7152, 0.0722])
    }

    /// CIELAB, D65.
    fn lab(color: u32) -> [f64; 3] {
        let f = |t: f64| if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let x = f(weighed(channels(color), [0.4124, 0.3576, 0.1805]) / 0.9505);
        let y = f(luminance(color));
        let z = f(weighed(channels(color), [0.0193, 0.1192, 0.9505]) / 1.089);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    #[test]
    fn categories_are_told_apart_by_their_colours() {
        let all: Vec<&Category> = RULES.iter().flat_map(|rule| rule.categories()).chain([&UNKNOWN]).collect();
        for (at, category) in all.iter().enumerate() {
            let Category { id, color, .. } = **category;
            assert_eq!(category_color(id), color);
            for ground in [0xffffff, 0x181c24].map(luminance) {
                let [dark, light] = [luminance(color).min(ground), luminance(color).max(ground)];
                assert!((light + 0.05) / (dark + 0.05) >= 3.0, "{id}: {color:#x}");
            }
            for other in &all[..at] {
                let apart = lab(color).into_iter().zip(lab(other.color)).map(|(a, b)| (a - b).powi(2));
                assert!(apart.sum::<f64>().sqrt() >= 10.0, "{id} and {} look alike", other.id);
            }
        }
    }

    #[test]
    fn every_category_has_one_id_and_one_name() {
        let all: Vec<&Category> = RULES.iter().flat_map(|rule| rule.categories()).collect();
        for category in &all {
            assert_eq!(all.iter().filter(|other| other.id == category.id).count(), 1, "{}", category.id);
            assert_eq!(category_name(category.id), Some(category.name));
        }
        assert!(all.len() >= 20 && category_name("no-such").is_none());
    }
}
