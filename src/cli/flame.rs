//! What flame graphs show, and how.

use super::{DiffFormat, Format};
use crate::render::Width;
use clap::Args;

#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[command(next_help_heading = "Flame graphs")]
pub struct FlameArgs {
    /// What makes a frame wide: the bytes that its calls mapped and that are … [default: unused]
    ///
    /// Where it is not known what is in memory (a maps file, a moment of a recording), the default is
    /// virt. With -f pprof, which has all of them, what is shown first.
    #[arg(long, value_enum, value_name = "WIDTH")]
    pub width: Option<Width>,

    /// Merge stacks from the inside out: what is mapped, which function called for it, from where
    #[arg(long)]
    pub reverse: bool,

    /// Draw the root at the top and let stacks hang down (an icicle graph)
    #[arg(long)]
    pub inverted: bool,

    /// Give the thread that made the call a frame of its own
    #[arg(long)]
    pub threads: bool,

    /// Distinguish the source lines of a function
    #[arg(long)]
    pub lines: bool,
}

impl FlameArgs {
    /// Whether these switches mean anything with that format.
    ///
    /// # Errors
    /// In words, which do not.
    pub fn check(&self, format: Format) -> Result<(), String> {
        match format {
            Format::Svg => Ok(()),
            Format::Folded => self.only("-f folded", &["--width", "--reverse", "--threads", "--lines"]),
            Format::Pprof => self.only("-f pprof", &["--width"]),
            Format::Text => self.only("-f text", &[]),
            Format::Json => self.only("-f json", &[]),
            // The page has switches of its own.
            Format::Html => self.only("-f html", &[]),
        }
    }

    /// As [`check`](FlameArgs::check), for comparisons.
    ///
    /// # Errors
    /// In words, which do not.
    pub fn check_diff(&self, format: DiffFormat) -> Result<(), String> {
        self.check(match format {
            DiffFormat::Text => Format::Text,
            DiffFormat::Json => Format::Json,
            DiffFormat::Folded => Format::Folded,
            DiffFormat::Svg => Format::Svg,
            DiffFormat::Html => Format::Html,
        })
    }

    /// As [`check`](FlameArgs::check), of a heap: its stacks can be turned round.
    ///
    /// # Errors
    /// In words, which do not.
    pub fn check_heap(&self) -> Result<(), String> {
        let given = [
            ("--width", self.width.is_some()),
            ("--inverted", self.inverted),
            ("--threads", self.threads),
            ("--lines", self.lines),
        ];
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => Err(format!("{name} is about what is mapped, and this is a heap")),
        }
    }

    /// As [`check_heap`](FlameArgs::check_heap), of two: the root can be at the top.
    ///
    /// # Errors
    /// In words, which do not.
    pub fn check_heap_diff(&self) -> Result<(), String> {
        FlameArgs { inverted: false, ..*self }.check_heap()
    }

    fn only(&self, format: &str, allowed: &[&str]) -> Result<(), String> {
        let given = [
            ("--width", self.width.is_some()),
            ("--reverse", self.reverse),
            ("--inverted", self.inverted),
            ("--threads", self.threads),
            ("--lines", self.lines),
        ];
        match given.iter().find(|(name, given)| *given && !allowed.contains(name)) {
            None => Ok(()),
            Some((name @ "--width", _)) => {
                Err(format!("{name} means nothing with {format}: it is for -f svg, folded and pprof"))
            }
            Some((name @ "--inverted", _)) => {
                Err(format!("{name} means nothing with {format}: it is for -f svg"))
            }
            Some((name, _)) => {
                Err(format!("{name} means nothing with {format}: it is for -f svg and folded"))
            }
        }
    }
}
