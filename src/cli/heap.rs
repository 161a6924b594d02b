//! `vmaudit heap`.

use super::heap_view::{HeapFormat, HeapViewArgs, name};
use super::quantity::{age, sampled, seconds, size};
use super::{Aslr, StackArgs, TargetArgs};
use crate::heap::HeapBy;
use clap::{ArgGroup, Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("whose").required(true).args(["pids", "container", "cgroup", "arm", "command"])))]
pub struct HeapArgs {
    #[command(flatten)]
    pub of: TargetArgs,

    /// Print what starts a program so that -p can count in it later, by the library and without uprobes
    ///
    /// As a variable of the environment: env $(vmaudit heap --arm) ./server. Until then the library sleeps. It is put into
    /// FOLDER, or into /var/cache/vmaudit (root), $XDG_CACHE_HOME/vmaudit or ~/.cache/vmaudit.
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true)]
    pub arm: Option<Option<PathBuf>>,

    /// Print the allocator's arenas as they are now, and end: what is in use, free, and would be given back
    ///
    /// Read from the memory of the processes: no probes, and no privileges for processes of your own.
    #[arg(long, conflicts_with_all = ["command", "arm", "by", "allocators", "older", "min_size", "max_size", "sample", "method", "combined", "interval", "duration", "leaks_only", "reverse"])]
    pub arenas: bool,

    /// Print the runtime's own record of allocating stacks, and end: Go's memory profile
    ///
    /// Read from the memory of the processes: no probes, nothing runs in them, and no privileges for processes of your own.
    #[arg(long, conflicts_with_all = ["command", "arm", "arenas", "allocators", "older", "min_size", "max_size", "sample", "method", "combined", "interval", "duration", "leaks_only"])]
    pub runtime: bool,

    /// What hands out memory: a name (libc, cxx, jemalloc, tcmalloc, mimalloc, musl, postgres) or a
    /// description of your own, FILE.toml (docs/heap.md)
    ///
    /// Without it: libc, cxx, jemalloc, tcmalloc and mimalloc, wherever their functions are found.
    #[arg(long = "allocator", value_name = "NAME|FILE", value_delimiter = ',')]
    pub allocators: Vec<String>,

    /// Show what is at least this old: 500ms, 10s, 2m, 1h
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub older: Option<Duration>,

    /// Show blocks of at least SIZE: 512, 4k, 1MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub min_size: Option<u64>,

    /// Show blocks of at most SIZE
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,

    /// See one allocation every SIZE bytes on average, and estimate the rest: for programs that
    /// allocate very often
    ///
    /// The estimates are unbiased; their standard error is shown.
    #[arg(long, value_name = "SIZE", value_parser = sampled)]
    pub sample: Option<u64>,

    /// How allocations are seen
    #[arg(long, value_enum, default_value_t = Method::Auto, value_name = "METHOD")]
    pub method: Method,

    /// Count in the kernel, without ages and sizes of single blocks: for programs that allocate
    /// very often
    #[arg(long, conflicts_with_all = ["older", "min_size", "max_size", "sample"])]
    pub combined: bool,

    /// Show what grew, with a snapshot every SECS seconds
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub interval: Option<f64>,

    /// Report after SECS seconds (and leave the command running)
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Show stacks only of which nothing was ever freed and that keep growing
    ///
    /// They have to grow in two intervals or more, and in the second half of the time. Without
    /// --interval, a snapshot is taken each second.
    #[arg(long)]
    pub leaks_only: bool,

    /// What to order by, and to show stacks of
    #[arg(long, value_enum, default_value_t = HeapBy::Outstanding, value_name = "WHAT")]
    pub by: HeapBy,

    /// Merge from the inside: the allocator's callers, and their callers
    #[arg(long)]
    pub reverse: bool,

    /// Show the N largest stacks
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// How to write the report
    #[arg(short, long, value_enum, default_value_t = HeapFormat::Text, value_name = "FORMAT")]
    pub format: HeapFormat,

    /// Write the report to FILE instead of standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Keep the report in FILE, and with --interval each one (SQLite; docs/recording.md), for report and diff
    ///
    /// An older recording there is kept as FILE.old; no other file is overwritten.
    #[arg(short, long, value_name = "FILE", conflicts_with = "arm")]
    pub output: Option<PathBuf>,

    /// These processes alone, not those that they start
    #[arg(long)]
    pub no_follow_forks: bool,

    /// Place probes in every process of the machine that maps the allocator's file, not only in those that are counted
    ///
    /// Then children of -p are counted from their first instruction on. Each call of every other program costs a breakpoint,
    /// and programs that translate code (qemu-user, valgrind, DynamoRIO) end with SIGTRAP.
    #[arg(long, conflicts_with_all = ["arm", "arenas", "runtime", "no_follow_forks"])]
    pub all_processes: bool,

    /// Address space layout randomisation of the command
    #[arg(long, value_enum, default_value_t = Aslr::Keep, value_name = "MODE", conflicts_with_all = ["pids", "container", "cgroup"])]
    pub aslr: Aslr,

    /// Under sudo, run the command as root instead of as the invoking user
    #[arg(long, conflicts_with_all = ["pids", "container", "cgroup"])]
    pub as_root: bool,

    #[command(flatten)]
    pub stacks: StackArgs,

    /// Say on standard error what was probed, read and how long it took
    #[arg(short, long)]
    pub verbose: bool,

    /// Bytes of ring buffer between kernel and vmaudit
    #[arg(long, value_name = "N", default_value_t = 56 << 20, hide_short_help = true)]
    pub ring_bytes: u32,

    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Method {
    /// By a preloaded library where that is possible, else by uprobes
    Auto,
    /// By a library that is preloaded into the command: cheapest, and without privileges
    Preload,
    /// By uprobes: running processes, any program, any function; root, or CAP_BPF and CAP_PERFMON
    Uprobes,
}

impl HeapArgs {
    /// What clap cannot check by itself.
    ///
    /// # Errors
    /// Options that contradict each other, in words.
    pub fn check(&self) -> Result<(), String> {
        let format = name(self.format);
        if self.all_processes && self.method == Method::Preload {
            return Err("--all-processes is about uprobes: --method preload has no probes".to_owned());
        }
        if self.arenas && !matches!(self.format, HeapFormat::Text | HeapFormat::Json) {
            return Err(format!("--arenas has no stacks: -f {format} is about stacks (text, json)"));
        }
        if self.runtime && self.format == HeapFormat::Heaptrack {
            return Err("--runtime: -f heaptrack is a log of calls, a runtime's own record has sums (pprof, html, folded, svg, json)"
                .to_owned());
        }
        if self.runtime && matches!(self.by, HeapBy::Peak | HeapBy::Temporary | HeapBy::Size) {
            let by = self.by.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
            return Err(format!(
                "--by {by} needs each allocation in its order: a runtime's own record has sums"
            ));
        }
        match (self.min_size, self.max_size) {
            (Some(least), Some(most)) if least > most => {
                return Err(format!("--min-size {least} is more than --max-size {most}: no block is both"));
            }
            _ => {}
        }
        let view = HeapViewArgs { by: self.by, format: self.format, reverse: self.reverse };
        let chosen = self.older.is_some() || self.min_size.is_some() || self.max_size.is_some();
        if self.by != HeapBy::Outstanding && (chosen || self.leaks_only) {
            return Err(format!(
                "--by {} is about all blocks: --older, --min-size, --max-size and --leaks-only choose of those \
                 that are outstanding",
                name(self.by)
            ));
        }
        view.check(self.combined, self.sample.is_some())?;
        let interval = self.interval.unwrap_or(1.0);
        match self.duration {
            Some(duration) if self.leaks_only && duration < 2.0 * interval => Err(format!(
                "--leaks-only needs two intervals to see growth: --duration {duration} is shorter than two of \
                 {interval} s (--interval)"
            )),
            Some(duration) if self.older.is_some_and(|age| age.as_secs_f64() >= duration) => Err(format!(
                "nothing that is seen can be as old as --older requires: --duration {duration} is not longer"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Alone {
        #[command(flatten)]
        args: HeapArgs,
    }

    fn parse(words: &[&str]) -> Result<HeapArgs, String> {
        let args = Alone::try_parse_from(["heap"].iter().chain(words)).map_err(|e| e.to_string())?.args;
        args.check().map(|()| args)
    }

    #[test]
    fn one_of_process_and_command() {
        assert_eq!(parse(&["-p", "7,8"]).map(|a| a.of.pids), Ok(vec![7, 8]));
        assert_eq!(parse(&["--", "ls", "-l"]).map(|a| a.command.len()), Ok(2));
        assert_eq!(parse(&["--container", "web"]).map(|a| a.of.container), Ok(Some("web".to_owned())));
        for bad in
            [&[][..], &["-p", "7", "--", "ls"], &["-p", "0"], &["--container", "web", "--cgroup", "/x"]]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for bad in [
            &["-p", "7", "--combined", "--older", "1s"][..],
            &["-p", "7", "--combined", "--min-size", "1k"],
            &["-p", "7", "--combined", "--max-size", "1k"],
            &["-p", "7", "--combined", "--sample", "1k"],
            &["-p", "7", "--min-size", "2k", "--max-size", "1k"],
            &["-p", "7", "--leaks-only", "--duration", "1.5"],
            &["-p", "7", "--leaks-only", "--duration", "5", "--interval", "3"],
            &["-p", "7", "--older", "10s", "--duration", "10"],
            &["-p", "7", "--aslr", "off"],
            &["--container", "web", "--as-root"],
            &["--cgroup", "/x", "--aslr", "off"],
            &["-p", "7", "--as-root"],
            &["-p", "7", "--by", "peak", "--older", "1s"],
            &["-p", "7", "--by", "size", "--reverse"],
            &["-p", "7", "--by", "temporary", "--sample", "64k"],
            &["-p", "7", "--by", "peak", "--combined"],
            &["-p", "7", "--runtime", "--by", "peak"],
            &["-p", "7", "--runtime", "-f", "heaptrack"],
            &["-p", "7", "--runtime", "--sample", "4k"],
            &["--runtime", "--", "ls"],
            &["--all-processes", "--method", "preload", "--", "ls"],
            &["-p", "7", "--all-processes", "--no-follow-forks"],
        ] {
            let error = parse(bad).expect_err(&format!("{bad:?}"));
            assert!(error.contains("--"), "{error}");
        }
        assert!(parse(&["-p", "7", "--min-size", "1k", "--max-size", "1k", "--leaks-only"]).is_ok());
        assert!(parse(&["--aslr", "off", "--combined", "--top", "3", "-f", "folded", "--", "ls"]).is_ok());
    }
}
