//! Where each sentence of the rules that are code was proven (src/attribution/rules/sentences.toml): a table of
//! docs/evidence.md, and whether any sentence is missing.

use regex::Regex;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vmaudit::attribution::category_name;

#[derive(Deserialize)]
struct File {
    sentence: Vec<Sentence>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sentence {
    rule: String,
    kind: String,
    says: String,
    category: Option<String>,
    program: Option<String>,
    #[serde(default)]
    change: Vec<String>,
    /// Measured by the VIRT of all categories.
    #[serde(default)]
    whole: bool,
    /// The program does not start with the change, which is what the sentence says.
    #[serde(default)]
    refuses: bool,
    /// Measured by the number of mappings.
    #[serde(default)]
    mappings: bool,
    /// No setting: several processes have the same mappings.
    #[serde(default)]
    added_up: bool,
    #[serde(default)]
    promised: String,
    #[serde(default)]
    virt: String,
    #[serde(default)]
    rss: String,
    #[serde(default)]
    verdict: String,
}

fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/attribution/rules")
}

fn sentences() -> Vec<Sentence> {
    let text = std::fs::read_to_string(rules().join("sentences.toml")).expect("sentences.toml");
    toml::from_str::<File>(&text).expect("sound").sentence
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "–" } else { text }
}

/// The part of docs/evidence.md.
pub fn table() -> String {
    let all = sentences();
    let proven = all.iter().filter(|one| !one.verdict.is_empty()).count();
    let mut out = format!(
        "\n## Rules that are code, sentence by sentence\n\n{proven} of {} sentences were tried on a real program \
         (`scripts/prove.sh --sentences` tries them again; Debian 12, 2 processors). MiB of the category over all \
         processes. A `fix` *holds* where nine tenths of what it promised were saved, and *helps* where nothing was \
         promised and a hundredth was; a `not` *holds* where VIRT changed by less than a twentieth; a `why` is *seen* where \
         the report on the program says it. The others are not proven: they need Android's C library, a device of CUDA or \
         ROCm, V8 with compressed pointers and no sandbox, or an older kernel (the rings of io_uring are all resident \
         here, and nothing is found of what is).\n\n\
         | rule | category | | begins with | on | promised | VIRT saved | RSS saved | |\n|---|---|---|---|---|---:|---:|---:|---|\n",
        all.len()
    );
    for one in &all {
        let category = one.category.as_deref().map_or("–".to_owned(), |id| format!("`{id}`"));
        let (says, verdict) = (one.says.replace('|', "\\|"), &one.verdict);
        let verdict = if verdict.is_empty() { "not proven" } else { verdict };
        let on = one.program.as_deref().unwrap_or("–");
        let _ = writeln!(
            out,
            "| {} | {category} | {} | {says} | {on} | {} | {} | {} | {verdict} |",
            one.rule,
            one.kind,
            or_dash(&one.promised),
            or_dash(&one.virt),
            or_dash(&one.rss),
        );
    }
    out
}

/// The sources of the rules that are code, by rule; without their tests, and each text in one line.
fn sources() -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let (comment, joint) = (Regex::new(r"//[^\n]*").expect("sound"), Regex::new(r"\\\n\s*").expect("sound"));
    let mut folders = vec![rules()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
        {
            let inside = entry.strip_prefix(rules()).expect("inside");
            let first = inside.iter().next().and_then(|name| name.to_str()).expect("a name");
            if entry.is_dir() && first != "data" {
                folders.push(entry);
            } else if entry.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&entry).expect("a source");
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                let code = joint.replace_all(&comment.replace_all(code, ""), "").replace("\\\"", "\"");
                let code = code.replace("\\u{201c}", "“").replace("\\u{201d}", "”");
                found.entry(first.trim_end_matches(".rs").to_owned()).or_default().push_str(&code);
            }
        }
    }
    found
}

#[test]
fn every_sentence_is_listed_and_none_that_is_gone() {
    let (sources, sentences) = (sources(), sentences());
    let begins = Regex::new(
        r#"(?:Fix::new\(|\.wont\(|\bfix\(|let knob = |Advice::why\(|let (?:mut )?why = )\s*&?(?:format!\()?\s*"([^"]{3,})"#,
    );
    let begins = begins.expect("sound");
    let mut missing = BTreeSet::new();
    let mut count = 0;
    for (rule, code) in &sources {
        for text in begins.captures_iter(code).map(|found| found[1].to_owned()) {
            count += 1;
            let own = |one: &&Sentence| one.rule == *rule && text.starts_with(&one.says);
            if sentences.iter().find(own).is_none() {
                missing.insert((rule.clone(), text));
            }
        }
    }
    assert!(count > 100, "{count} sentences: the sources are read");
    assert!(missing.is_empty(), "not in sentences.toml: {missing:#?}");
    for one in &sentences {
        let code = sources.get(&one.rule).map_or("", String::as_str);
        assert!(code.contains(&one.says), "{}: {:?} is in no source", one.rule, one.says);
        let known = one.category.as_deref().is_none_or(|id| category_name(id).is_some());
        let kind = ["why", "fix", "not"].contains(&one.kind.as_str());
        assert!(known && kind, "{}: {:?}", one.rule, one.says);
        assert!(!one.verdict.contains("FALSE"), "{}: {:?}", one.rule, one.says);
        assert_eq!(
            one.program.is_some(),
            !one.verdict.is_empty(),
            "{}: {:?}: measure it",
            one.rule,
            one.says
        );
        let tried = one.program.is_some() && one.kind != "why" && !one.added_up;
        assert_eq!(tried, !one.change.is_empty(), "{}: {:?}: what is changed", one.rule, one.says);
        let how = [one.whole, one.refuses, one.mappings, one.added_up];
        assert!(how.iter().filter(|how| **how).count() <= 1, "{}: {:?}", one.rule, one.says);
    }
}
