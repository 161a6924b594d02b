//! All rules that are data: the built-in ones, and a user's, which come first. Which of them a stack or a name
//! proves.

use super::format::{Mapped, TableRule, any, bare_name, parse};
use crate::attribution::code::{Role, is_wrapper, plain_name};
use crate::attribution::role::role_of;
use crate::model::toml_file::FileError;
use std::collections::HashMap;
use std::sync::LazyLock;

mod built_in {
    // Made by build.rs of the files in `builtin/`, which it has read with the same parser.
    include!(concat!(env!("OUT_DIR"), "/built_in_rules.rs"));
}

/// Rules in the order in which they are tried.
#[derive(Clone, Default, Debug)]
pub struct DataRules {
    rules: Vec<TableRule>,
    /// By functions that are named whole.
    by_function: HashMap<String, Vec<usize>>,
    /// Those with `*` in a function.
    with_patterns: Vec<usize>,
    of_libraries: Vec<usize>,
    named: Vec<usize>,
    of_files: Vec<usize>,
}

/// The piece to classify, and which rules apply to its process.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    pub mapped: Mapped<'a>,
    /// By the rule's number.
    pub applies: &'a dyn Fn(usize) -> bool,
}

/// A line of a stack, from whatever it is read.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// Base name.
    pub module: &'a str,
    /// Linkage and demangled name, as far as known.
    pub names: [Option<&'a str>; 2],
}

impl Named<'_> {
    fn bare(&self) -> impl Iterator<Item = &str> + '_ {
        let [linkage, display] = self.names;
        linkage.map(plain_name).into_iter().chain(display.map(bare_name))
    }

    /// True for a thin wrapper around a system call.
    pub fn is_wrapper(&self) -> bool {
        self.bare().any(is_wrapper)
    }

    fn is_of_libc(&self) -> bool {
        let [linkage, display] = self.names;
        matches!(role_of(self.module, linkage.or(display)), Role::Wrapper | Role::Allocator | Role::Libc)
    }
}

impl DataRules {
    /// Those that need no file of the user's.
    pub fn built_in() -> &'static DataRules {
        static ALL: LazyLock<DataRules> = LazyLock::new(|| DataRules::with(Vec::new()));
        &ALL
    }

    /// The built-in ones and `own`, of which each takes the place of a built-in one with the same id.
    pub fn with(own: Vec<TableRule>) -> DataRules {
        let files = built_in::FILES.iter();
        // Without an error: build.rs ends the build otherwise.
        let built_in =
            files.filter_map(|(name, text)| parse(text, &format!("built-in/{name}")).ok()).flatten();
        let built_in: Vec<TableRule> =
            built_in.filter(|rule| own.iter().all(|own| own.id != rule.id)).collect();
        DataRules::of(own.into_iter().chain(built_in).collect())
    }

    /// These and no others.
    pub fn of(rules: Vec<TableRule>) -> DataRules {
        let mut all = DataRules::default();
        for (at, rule) in rules.iter().enumerate() {
            let proof = &rule.proof;
            for function in &proof.functions {
                match function.exact() {
                    Some(name) => all.by_function.entry(name.to_owned()).or_default().push(at),
                    None => all.with_patterns.push(at),
                }
            }
            all.of_libraries.extend((!proof.libraries.is_empty()).then_some(at));
            all.named.extend((!proof.names.is_empty()).then_some(at));
            all.of_files.extend((!proof.files.is_empty()).then_some(at));
        }
        all.with_patterns.dedup();
        DataRules { rules, ..all }
    }

    pub fn rules(&self) -> &[TableRule] {
        &self.rules
    }

    /// The number of the rule with this id.
    pub fn number_of(&self, id: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.id == id)
    }

    pub fn get(&self, at: usize) -> Option<&TableRule> {
        self.rules.get(at)
    }

    pub fn knows_names(&self) -> bool {
        !self.named.is_empty() || !self.of_files.is_empty()
    }

    /// True if some rule names this function or its file, whatever its other conditions.
    pub fn knows(&self, line: Named<'_>) -> bool {
        let has = |name: &str| {
            let matches = |&at: &usize| any(&self.rules[at].proof.functions, name);
            self.by_function.contains_key(name) || self.with_patterns.iter().any(matches)
        };
        let of_library = |&at: &usize| any(&self.rules[at].proof.libraries, line.module);
        line.bare().any(has) || self.of_libraries.iter().any(of_library)
    }

    /// The rules that this line proves, by their numbers.
    fn at_line(&self, line: Named<'_>) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for name in line.bare() {
            found.extend(self.by_function.get(name).into_iter().flatten());
            let matches = |&&at: &&usize| any(&self.rules[at].proof.functions, name);
            found.extend(self.with_patterns.iter().filter(matches));
        }
        let of_library = |&&at: &&usize| any(&self.rules[at].proof.libraries, line.module);
        found.extend(self.of_libraries.iter().filter(of_library));
        found.sort_unstable();
        found.dedup();
        found.retain(|&at| {
            let modules = &self.rules[at].condition.modules;
            modules.is_empty() || any(modules, line.module)
        });
        found
    }

    /// The first rule that line `at` of a stack (innermost first) proves for what the stack's call mapped:
    /// between its function and the call lie functions of the same file only, or of files that it names.
    pub fn by_line(
        &self,
        lines: &[Named<'_>],
        at: usize,
        Query { mapped, applies }: Query<'_>,
    ) -> Option<usize> {
        let line = *lines.get(at)?;
        let inner = lines.get(..at)?;
        let fits = |&rule: &usize| {
            let TableRule { condition, .. } = &self.rules[rule];
            let own = |inner: &Named<'_>| inner.module == line.module || inner.is_wrapper();
            condition.holds(mapped)
                && applies(rule)
                && inner.iter().all(|inner| own(inner) || any(&condition.through, inner.module))
        };
        self.at_line(line).into_iter().find(fits)
    }

    /// The first rule that explains memory of `category`, which an allocator took when it was called by `lines`
    /// (innermost first).
    pub fn explaining(
        &self,
        category: &str,
        lines: &[Named<'_>],
        applies: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        lines.iter().enumerate().find_map(|(at, line)| {
            let inner = lines.get(..at).unwrap_or(&[]);
            let fits = |&rule: &usize| {
                let TableRule { condition, explains, .. } = &self.rules[rule];
                let own = |inner: &Named<'_>| inner.module == line.module || inner.is_of_libc();
                explains.iter().any(|own| own == category)
                    && applies(rule)
                    && inner.iter().all(|inner| own(inner) || any(&condition.through, inner.module))
            };
            self.at_line(*line).into_iter().find(fits)
        })
    }

    /// The first rule that the program's own name for the memory proves.
    pub fn by_name(&self, name: &str, Query { mapped, applies }: Query<'_>) -> Option<usize> {
        let named = |rule: &TableRule| any(&rule.proof.names, name) && rule.condition.holds(mapped);
        self.named.iter().copied().find(|&at| named(&self.rules[at]) && applies(at))
    }

    /// The first rule that the mapped file's path proves.
    pub fn by_file(&self, path: &str, Query { mapped, applies }: Query<'_>) -> Option<usize> {
        let of_file = |rule: &TableRule| any(&rule.proof.files, path) && rule.condition.holds(mapped);
        self.of_files.iter().copied().find(|&at| of_file(&self.rules[at]) && applies(at))
    }
}

/// The first id that two of these rules have.
///
/// # Errors
/// Where the second of them is.
pub fn each_once(rules: &[TableRule]) -> Result<(), FileError> {
    let mut known: HashMap<&str, &TableRule> = HashMap::new();
    for rule in rules {
        if let Some(first) = known.insert(&rule.id, rule) {
            let what = format!("id {:?} is that of the rule in {}:{}, too", rule.id, first.file, first.line);
            return Err(FileError { file: rule.file.clone(), line: rule.line, what });
        }
    }
    Ok(())
}
