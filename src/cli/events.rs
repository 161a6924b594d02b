//! `vmaudit events`.

use super::quantity::{seconds, seconds_from_start, size};
use super::target::pid;
use super::{Aslr, Backend, RingArgs, StackArgs};
use crate::render::events::{EventsFormat, TimeStyle};
use clap::{ArgGroup, Args};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(
    override_usage = "vmaudit events [OPTIONS] REC\n       vmaudit events [OPTIONS] -- CMD…\n       vmaudit events [OPTIONS] -p PID…"
)]
#[command(group = ArgGroup::new("source").required(true).multiple(true).args(["recording", "command", "pid"]))]
pub struct EventsArgs {
    /// How to write the events
    #[arg(short, long, value_enum, default_value_t = EventsFormat::Text, value_name = "FORMAT")]
    pub format: EventsFormat,

    /// What times count from
    #[arg(long, value_enum, default_value_t = TimeStyle::Relative, value_name = "FROM")]
    pub time: TimeStyle,

    /// Leave the stacks out
    #[arg(long)]
    pub no_stacks: bool,

    /// Write to FILE (`-`: standard output). Without it, a command's events go to standard error,
    /// all others to standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub live: LiveArgs,

    /// A recording (`vmaudit run -o REC`)
    #[arg(value_name = "REC", conflicts_with = "command")]
    pub recording: Option<PathBuf>,

    /// A command to start and trace, with its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Which events to print: all that are named have to hold.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Which events")]
pub struct FilterArgs {
    /// Of these threads
    #[arg(long, value_name = "TID,…", value_delimiter = ',')]
    pub tid: Vec<i32>,

    /// With REC or CMD: of these processes. Without: of these running processes and those that they
    /// start, from now on, until Ctrl-C or their end
    #[arg(short, long, value_name = "PID,…", value_delimiter = ',', value_parser = pid, allow_hyphen_values = true)]
    pub pid: Vec<i32>,

    /// Of threads with this name at that time
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub comm: Vec<OsString>,

    /// These calls, by name (`mmap,munmap`) or class: map, unmap, protect, advise, name, task
    #[arg(long, value_name = "CALL,…", value_delimiter = ',')]
    pub call: Vec<String>,

    /// At least SIZE bytes (suffixes K, M, G, T: powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub min_size: Option<u64>,

    /// At most SIZE bytes
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,

    /// That touch this address, or this range (hexadecimal, end excluded)
    #[arg(long, value_name = "ADDR[-ADDR]", value_parser = address_range)]
    pub addr: Option<(u64, u64)>,

    /// With a frame whose function, module or file:line matches
    #[arg(long, value_name = "REGEX")]
    pub stack: Option<String>,

    /// That the kernel refused
    #[arg(long)]
    pub failed: bool,

    /// Not before SECS seconds after the command began
    #[arg(long, value_name = "SECS", value_parser = seconds_from_start)]
    pub since: Option<f64>,

    /// Not after SECS seconds after the command began
    #[arg(long, value_name = "SECS", value_parser = seconds_from_start)]
    pub until: Option<f64>,

    /// The first N of those (a command or process is then left running)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub head: Option<u64>,
}

/// How to trace a command or a process.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Tracing a command or a process")]
pub struct LiveArgs {
    /// How to see the calls
    #[arg(long, value_enum, default_value_t = Backend::Auto, value_name = "BACKEND")]
    pub backend: Backend,

    /// Address space layout randomisation of the command
    #[arg(long, value_enum, default_value_t = Aslr::Keep, value_name = "MODE")]
    pub aslr: Aslr,

    /// Stop after SECS seconds and leave the command running
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<f64>,

    #[command(flatten)]
    pub stacks: StackArgs,

    /// Trace the command alone, not the processes that it starts
    #[arg(long)]
    pub no_follow_forks: bool,

    /// Under sudo, run the command as root instead of as the invoking user
    #[arg(long)]
    pub as_root: bool,

    /// Say on standard error what was attached
    #[arg(short, long)]
    pub verbose: bool,

    #[command(flatten)]
    pub rings: RingArgs,
}

/// Programs have nothing above this but by special request (x86-64, four levels of page tables).
const USUAL_END: u64 = 0x7fff_ffff_ffff;

/// An address in hexadecimal, with or without `0x`.
pub(super) fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let all_hex = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit());
    match u64::from_str_radix(digits, 16) {
        // JSON's numbers are decimal: `ret` of an mmap, say.
        Ok(value) if value > USUAL_END && digits.len() == text.len() => match text.parse::<u64>() {
            Ok(decimal @ 0x1000..=USUAL_END) => Err(format!(
                "addresses are hexadecimal, and {text} would lie beyond any program's memory: is the decimal \
                 number meant, {decimal:#x}? (Write 0x{text} if not.)"
            )),
            _ => Ok(value),
        },
        Ok(value) if all_hex => Ok(value),
        _ => Err(format!("{text:?} is no address: write it in hexadecimal, as in /proc/PID/maps")),
    }
}

/// `ADDR` (that byte) or `ADDR-ADDR`.
fn address_range(text: &str) -> Result<(u64, u64), String> {
    let Some((start, end)) = text.split_once('-') else {
        let at = address(text)?;
        return Ok((at, at.saturating_add(1)));
    };
    let (start, end) = (address(start)?, address(end)?);
    if start < end {
        Ok((start, end))
    } else {
        Err(format!("{text:?} is no range: it ends before it begins"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hexadecimal() {
        assert_eq!(address("0x7f00"), Ok(0x7f00));
        assert_eq!(address("7f00"), Ok(0x7f00));
        assert_eq!(address_range("7f00"), Ok((0x7f00, 0x7f01)));
        assert_eq!(address("ffffffffff600000"), Ok(0xffff_ffff_ff60_0000));
        let meant = address("140631873683456").expect_err("a decimal number");
        assert!(meant.contains("0x7fe768e00000"), "{meant}");
        assert_eq!(address("0x140631873683456"), Ok(0x0140_6318_7368_3456), "if it is insisted on");
        assert_eq!(address_range("0x1000-3000"), Ok((0x1000, 0x3000)));
        for wrong in ["", "0x", "xyz", "2000-1000", "-", "+5", "1-", "11112222333344445"] {
            assert!(address_range(wrong).is_err(), "{wrong}");
        }
    }
}
