//! TOML → rules, with the line of whatever is wrong.

use super::left::{ALLOWED, Left, size};
use super::pattern::Pattern;
use super::{Condition, Knob, Proof, TableRule};
use crate::model::is_hidden;
use crate::model::toml_file::{FileError, Source};
use serde::Deserialize;
use std::collections::HashMap;
use std::ops::Range;
use toml::Spanned;

/// Longest text that a report shows of a rule, in bytes.
const LONGEST: usize = 600;
const LONGEST_TITLE: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    rule: Vec<Spanned<RawRule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    id: Spanned<String>,
    what: Spanned<String>,
    many: Option<Spanned<String>>,
    why: Spanned<String>,
    source: Spanned<String>,
    proven: Spanned<RawProven>,
    #[serde(default)]
    functions: Vec<Spanned<String>>,
    #[serde(default)]
    libraries: Vec<Spanned<String>>,
    #[serde(default)]
    names: Vec<Spanned<String>>,
    #[serde(default)]
    files: Vec<Spanned<String>>,
    #[serde(default)]
    modules: Vec<Spanned<String>>,
    #[serde(default)]
    through: Vec<Spanned<String>>,
    #[serde(default)]
    programs: Vec<Spanned<String>>,
    reserved: Option<bool>,
    shared: Option<bool>,
    huge: Option<bool>,
    #[serde(default)]
    callers: Vec<Spanned<String>>,
    least: Option<Spanned<String>>,
    most: Option<Spanned<String>>,
    #[serde(default)]
    explains: Vec<Spanned<String>>,
    #[serde(default)]
    knob: Vec<RawKnob>,
    #[serde(default)]
    no_help: Vec<RawNoHelp>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "the program on which it was seen to be true, or false")]
enum RawProven {
    On(String),
    Not(bool),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKnob {
    knob: Spanned<String>,
    leaves: Option<Spanned<String>>,
    #[serde(default)]
    resident: bool,
    #[serde(default)]
    stacks: bool,
    #[serde(default)]
    threads: bool,
    note: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNoHelp {
    knob: Spanned<String>,
    why: Spanned<String>,
}

/// Reads a file of rules. `file` is what errors call it.
///
/// # Errors
/// The first thing that is wrong, with its line and what is allowed there.
pub fn parse(text: &str, file: &str) -> Result<Vec<TableRule>, FileError> {
    let source = Source { text, file };
    let raw: RawFile = source.read()?;
    if raw.rule.is_empty() {
        return Err(source.error(None, "no rule: a file has at least one [[rule]]"));
    }
    let mut lines = HashMap::new();
    let mut rules = Vec::with_capacity(raw.rule.len());
    for table in &raw.rule {
        let rule = rule(source, table)?;
        if let Some(first) = lines.insert(rule.id.clone(), rule.line) {
            let what = format!("id {:?} is that of the rule in line {first}, too", rule.id);
            return Err(source.error(Some(table.get_ref().id.span()), &what));
        }
        rules.push(rule);
    }
    Ok(rules)
}

fn rule(source: Source<'_>, table: &Spanned<RawRule>) -> Result<TableRule, FileError> {
    let raw = table.get_ref();
    let id = raw.id.get_ref();
    let word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if !id.split_once('.').is_some_and(|(group, name)| word(group) && word(name)) {
        let what =
            format!("id {id:?}: allowed is GROUP.NAME, of a to z, 0 to 9 and -, as in \"php.opcache\"");
        return Err(source.error(Some(raw.id.span()), &what));
    }
    let proven = match raw.proven.get_ref() {
        RawProven::On(program) if !program.trim().is_empty() => {
            source.check("proven", program, raw.proven.span(), LONGEST)?;
            Some(program.clone())
        }
        RawProven::Not(false) => None,
        RawProven::On(_) | RawProven::Not(true) => {
            let what = "proven: allowed are false, and the program on which it was seen to be true, as in \
                        \"Debian 12: php8.2-cli 8.2.36\"";
            return Err(source.error(Some(raw.proven.span()), what));
        }
    };
    let patterns = |field: &str, list| source.patterns(field, list);
    let proof = Proof {
        functions: patterns("functions", &raw.functions)?,
        libraries: patterns("libraries", &raw.libraries)?,
        names: patterns("names", &raw.names)?,
        files: patterns("files", &raw.files)?,
    };
    if proof == Proof::default() {
        let what = "no proof: functions, libraries, names or files are needed; where it is mapped and how large it is \
                    proves nothing";
        return Err(source.error(Some(table.span()), what));
    }
    let condition = Condition {
        modules: patterns("modules", &raw.modules)?,
        through: patterns("through", &raw.through)?,
        programs: patterns("programs", &raw.programs)?,
        reserved: raw.reserved,
        shared: raw.shared,
        huge: raw.huge,
        callers: patterns("callers", &raw.callers)?,
        least: source.size("least", raw.least.as_ref())?,
        most: source.size("most", raw.most.as_ref())?,
    };
    if proof.functions.is_empty() && proof.libraries.is_empty() {
        let of_stacks = [
            ("modules", &raw.modules),
            ("through", &raw.through),
            ("callers", &raw.callers),
            ("explains", &raw.explains),
        ];
        if let Some((name, list)) = of_stacks.iter().find(|(_, list)| !list.is_empty()) {
            let span = list.first().map(Spanned::span);
            return Err(source.error(span, &format!("{name} has no meaning without functions or libraries")));
        }
    }
    let what = source.title("what", &raw.what)?;
    let many = match &raw.many {
        Some(many) => source.title("many", many)?,
        None => format!("{what}s"),
    };
    let explains = raw.explains.iter().map(|id| source.title("explains", id)).collect::<Result<_, _>>()?;
    Ok(TableRule {
        id: id.clone(),
        what,
        many,
        why: source.text("why", &raw.why)?,
        source: source.text("source", &raw.source)?,
        proven,
        proof,
        condition,
        explains,
        knobs: raw.knob.iter().map(|own| knob(source, own, raw)).collect::<Result<_, _>>()?,
        no_help: raw
            .no_help
            .iter()
            .map(|raw| Ok((source.title("knob", &raw.knob)?, source.text("why", &raw.why)?)))
            .collect::<Result<_, _>>()?,
        file: source.file.to_owned(),
        line: source.line(table.span().start),
    })
}

fn knob(source: Source<'_>, raw: &RawKnob, of: &RawRule) -> Result<Knob, FileError> {
    let left = raw.leaves.as_ref().map(|leaves| {
        let text = leaves.get_ref();
        let wrong =
            |()| source.error(Some(leaves.span()), &format!("leaves {text:?}: allowed are {ALLOWED}"));
        text.parse().map_err(wrong)
    });
    let left = left.transpose()?;
    if raw.resident && left.is_none() {
        let what = "resident has no meaning without leaves";
        return Err(source.error(Some(raw.knob.span()), what));
    }
    if raw.stacks && of.programs.is_empty() {
        let what = "stacks: programs is needed: only there the setting is known";
        return Err(source.error(Some(raw.knob.span()), what));
    }
    if raw.threads && !matches!(left, Some(Left::Things(_))) {
        let what = "threads: leaves \"N of them\" is needed: so many stay without threads";
        return Err(source.error(Some(raw.knob.span()), what));
    }
    let note = raw.note.as_ref().map(|note| source.text("note", note)).transpose()?;
    Ok(Knob {
        knob: source.title("knob", &raw.knob)?,
        left,
        resident: raw.resident,
        stacks: raw.stacks,
        threads: raw.threads,
        note: note.unwrap_or_default(),
    })
}

impl Source<'_> {
    fn patterns(&self, field: &str, list: &[Spanned<String>]) -> Result<Vec<Pattern>, FileError> {
        let pattern = |text: &Spanned<String>| {
            Pattern::new(text.get_ref()).ok_or_else(|| {
                let what = format!(
                    "{field} {:?}: a name of one line is needed, in which * stands for anything, with {} other \
                     characters at least",
                    text.get_ref(),
                    Pattern::LEAST
                );
                self.error(Some(text.span()), &what)
            })
        };
        list.iter().map(pattern).collect()
    }

    fn size(&self, field: &str, text: Option<&Spanned<String>>) -> Result<Option<u64>, FileError> {
        let Some(text) = text else { return Ok(None) };
        let wrong = || {
            let what =
                format!("{field} {:?}: a size is needed, as in \"64 MiB\" (KiB, MiB, GiB)", text.get_ref());
            self.error(Some(text.span()), &what)
        };
        size(text.get_ref()).map(Some).ok_or_else(wrong)
    }

    fn title(&self, field: &str, text: &Spanned<String>) -> Result<String, FileError> {
        self.check(field, text.get_ref(), text.span(), LONGEST_TITLE)?;
        Ok(text.get_ref().clone())
    }

    fn text(&self, field: &str, text: &Spanned<String>) -> Result<String, FileError> {
        self.check(field, text.get_ref(), text.span(), LONGEST)?;
        Ok(text.get_ref().clone())
    }

    /// Reports are read in terminals: a text is one line of characters that move nothing.
    fn check(&self, field: &str, text: &str, span: Range<usize>, longest: usize) -> Result<(), FileError> {
        let plain = !text.contains(is_hidden);
        if plain && !text.trim().is_empty() && text.len() <= longest {
            return Ok(());
        }
        let what = format!(
            "{field}: one line of text is needed, of 1 to {longest} bytes, without control \
                            characters"
        );
        Err(self.error(Some(span), &what))
    }
}
