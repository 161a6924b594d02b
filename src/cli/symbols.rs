//! `vmaudit symbols`.

use super::PlainFormat;
use super::target::pid;
use clap::{ArgGroup, Args};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(
    override_usage = "vmaudit symbols [OPTIONS] ELF\n       vmaudit symbols [OPTIONS] --lib NAME\n       vmaudit symbols [OPTIONS] -p PID [--lib NAME]"
)]
#[command(group = ArgGroup::new("file").required(true).multiple(true).args(["elf", "pid", "lib"]))]
pub struct SymbolsArgs {
    /// A program or library
    #[arg(value_name = "ELF", conflicts_with_all = ["pid", "lib"])]
    pub elf: Option<PathBuf>,

    /// The files that this process has mapped as code: how many functions each has, or, with --match
    /// or --lib, which
    #[arg(short, long, value_name = "PID", value_parser = pid, allow_negative_numbers = true)]
    pub pid: Option<i32>,

    /// A library by name (`libtcmalloc.so.4`), found as ld.so finds it; with -p one of the process'
    #[arg(long, value_name = "NAME")]
    pub lib: Option<OsString>,

    /// Only functions whose name matches, mangled or demangled
    #[arg(long = "match", value_name = "REGEX")]
    pub pattern: Option<String>,

    /// How to write the list
    #[arg(short, long, value_enum, default_value_t = PlainFormat::Text, value_name = "FORMAT")]
    pub format: PlainFormat,
}
