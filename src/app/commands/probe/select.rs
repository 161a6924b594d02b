//! Which functions of a file are probed: each address once, by its best name among those that match.

use crate::app::code_files::CodeFile;
use crate::app::code_files::matches;
use crate::model::{Probe, ProbeSummary, Skip};
use crate::symbolize::demangle;
use regex::Regex;
use std::collections::HashMap;

/// A function to probe.
#[derive(Debug)]
pub struct Selected {
    pub svma: u64,
    pub offset: u64,
    /// Demangled.
    pub name: String,
    pub linkage: String,
}

#[derive(Debug, Default)]
pub struct Selection {
    /// By address.
    pub functions: Vec<Selected>,
    /// Of all that match.
    pub summary: ProbeSummary,
    pub notes: Vec<String>,
}

impl Selection {
    pub fn of(file: &CodeFile, pattern: &Regex) -> Selection {
        let table = file.functions();
        let mut out = Selection {
            notes: table.notes().iter().map(ToString::to_string).collect(),
            ..Selection::default()
        };
        let mut known: HashMap<u64, usize> = HashMap::new();
        for function in table.functions() {
            let linkage = String::from_utf8_lossy(table.name(function)).into_owned();
            let name = demangle(&linkage);
            if !matches(pattern, &linkage, &name) {
                continue;
            }
            let (Some(probed), Probe::Yes | Probe::No(Skip::Alias { .. })) =
                (table.probed(function), function.probe)
            else {
                out.summary.add(function.probe);
                continue;
            };
            let Some(offset) = probed.offset else { continue };
            if known.contains_key(&offset) {
                out.summary.add(function.probe);
                continue;
            }
            // An alias whose better name does not match represents the address.
            out.summary.add(Probe::Yes);
            known.insert(offset, out.functions.len());
            let name = if linkage.is_empty() { format!("fn@0x{:x}", probed.svma) } else { name };
            out.functions.push(Selected { svma: probed.svma, offset, name, linkage });
        }
        out
    }

    /// Why there is nothing to probe.
    pub fn why_none(&self, file: &CodeFile, pattern: &str) -> String {
        let path = file.path.display();
        if self.summary.functions > 0 {
            let skipped = self.summary.skipped.iter();
            let reasons: Vec<String> =
                skipped.map(|(skip, count)| format!("{count} {}", skip.id())).collect();
            return format!(
                "{path}: {} function symbols match {pattern}, and none can be probed: {} (vmaudit symbols says \
                 which)",
                self.summary.functions,
                reasons.join(", ")
            );
        }
        match self.notes.first() {
            Some(note) => format!("{path}: no function matches {pattern}; {note}"),
            None => format!("{path}: no function matches {pattern} (vmaudit symbols lists them)"),
        }
    }
}
