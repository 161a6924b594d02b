//! How a heap is shown: as it was run, or from a recording.

use crate::heap::HeapBy;
use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum HeapFormat {
    /// Tables and stacks for people
    Text,
    /// Everything, machine-readable (schema 1)
    Json,
    /// One stack a line, for flame graph programs
    Folded,
    /// A flame graph
    Svg,
    /// One file to open in a browser: flame graph, stacks, sizes, modules, threads
    Html,
    /// A heap profile for pprof and Speedscope, with all values
    Pprof,
    /// A data file for heaptrack_gui and heaptrack_print (FILE.zst), of one process
    Heaptrack,
}

impl HeapFormat {
    /// One document at the end, whatever `--interval` says.
    pub fn is_document(self) -> bool {
        !matches!(self, HeapFormat::Text | HeapFormat::Json | HeapFormat::Folded)
    }

    /// Nothing to read on a terminal.
    pub fn is_binary(self) -> bool {
        matches!(self, HeapFormat::Pprof | HeapFormat::Heaptrack)
    }
}

/// What is shown, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapViewArgs {
    pub by: HeapBy,
    pub format: HeapFormat,
    pub reverse: bool,
}

impl HeapViewArgs {
    /// `combined`, `sampled`: how it was counted.
    ///
    /// # Errors
    /// In words, what does not go together.
    pub fn check(self, combined: bool, sampled: bool) -> Result<(), String> {
        let HeapViewArgs { by, format, reverse } = self;
        let (by_name, format_name) = (name(by), name(format));
        if reverse && matches!(by, HeapBy::Module | HeapBy::Thread | HeapBy::Size) {
            return Err(format!("--reverse merges stacks: --by {by_name} shows none"));
        }
        if reverse && matches!(by, HeapBy::Allocations | HeapBy::Temporary) && format == HeapFormat::Text {
            return Err(format!("--reverse draws bytes: --by {by_name} counts calls"));
        }
        let is_about_stacks = matches!(format, HeapFormat::Folded | HeapFormat::Svg | HeapFormat::Pprof);
        if is_about_stacks && matches!(by, HeapBy::Module | HeapBy::Thread | HeapBy::Size) {
            return Err(format!("-f {format_name} is about stacks: --by {by_name} shows none"));
        }
        let has_all = matches!(format, HeapFormat::Html | HeapFormat::Heaptrack);
        if has_all && by != HeapBy::Outstanding {
            return Err(format!("-f {format_name} has all of them: leave --by {by_name} out"));
        }
        if reverse && (has_all || format == HeapFormat::Pprof) {
            return Err(format!(
                "-f {format_name} is turned round by the program that shows it: leave --reverse out"
            ));
        }
        if combined && matches!(by, HeapBy::Peak | HeapBy::Temporary | HeapBy::Size) {
            return Err(format!(
                "--by {by_name} needs each allocation in its order: --combined counts in the kernel"
            ));
        }
        if sampled && by == HeapBy::Temporary {
            return Err("--by temporary needs each allocation: not with --sample".to_owned());
        }
        Ok(())
    }
}

/// As it is typed.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
