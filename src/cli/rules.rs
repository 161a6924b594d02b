//! `vmaudit rules`.

use super::PlainFormat;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct RulesArgs {
    /// Show which rule claims which regions of a report (vmaudit run -f json)
    #[arg(long, value_name = "REPORT.json")]
    pub test: Option<PathBuf>,

    /// Take the rules in FOLDER, too, before all others
    #[arg(long, value_name = "FOLDER")]
    pub rules: Option<PathBuf>,

    /// How to write it
    #[arg(short, long, value_enum, default_value_t = PlainFormat::Text, value_name = "FORMAT")]
    pub format: PlainFormat,
}
