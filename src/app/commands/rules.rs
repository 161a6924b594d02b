//! `vmaudit rules`: the rules that are data, and what they say of a report.

use crate::app::error::{AppError, DiffError};
use crate::app::output;
use crate::app::rule_files::rules as all_rules;
use crate::cli::{PlainFormat, RulesArgs};
use crate::render::rules::{rules_to_text, tested_to_text};
use crate::render::to_json;
use crate::report::Report;
use crate::report::rules::{RuleRow, Tested, list, test};
use crate::sys::untrusted_open::read_up_to;
use serde::Serialize;
use std::fs::File;
use std::io;
use std::path::Path;

/// Bytes of a report that is read: none is that long.
const LONGEST_REPORT: u64 = 4 << 30;

#[derive(Serialize)]
struct Listed {
    schema: u32,
    rules: Vec<RuleRow>,
}

#[derive(Serialize)]
struct Tests {
    schema: u32,
    processes: Vec<Tested>,
}

/// Does `vmaudit rules`; returns the exit code.
pub fn rules(args: &RulesArgs) -> Result<u8, AppError> {
    let options = output::text_options(&io::stdout());
    let text = match (&args.test, args.format) {
        (None, PlainFormat::Text) => rules_to_text(&list(all_rules()), options),
        (None, PlainFormat::Json) => to_json(&Listed { schema: 1, rules: list(all_rules()) })?,
        (Some(path), format) => {
            let processes = test(all_rules(), &read(path)?);
            match format {
                PlainFormat::Text => tested_to_text(&processes, options),
                PlainFormat::Json => to_json(&Tests { schema: 1, processes })?,
            }
        }
    };
    output::print(text.as_bytes())?;
    Ok(0)
}

fn read(path: &Path) -> Result<Report, DiffError> {
    let bytes = File::open(path).and_then(|file| read_up_to(file, LONGEST_REPORT));
    let bytes = bytes.map_err(|source| DiffError::Open { path: path.to_owned(), source })?;
    Report::from_json(&bytes).map_err(|source| DiffError::Json { path: path.to_owned(), source })
}
