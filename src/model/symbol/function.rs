//! Function symbols, and whether a probe (uprobe) can be placed on them.

use std::collections::BTreeMap;
use std::fmt;

/// Whether a uprobe can be placed at its first instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    Yes,
    No(Skip),
}

/// Why a function is not probed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Skip {
    /// Another name of an address: index of the function that is probed instead.
    Alias { of: u32 },
    /// Defined in another file.
    Imported,
    /// Covers no code (`register_tm_clones`).
    ZeroSize,
    /// STT_GNU_IFUNC: the loader calls it once, to resolve the name.
    IfuncResolver,
    /// A stub that jumps to another file's function.
    LinkageStub,
    /// SHN_ABS and the like: no address of this file.
    Absolute,
    /// Its first instruction is VEX- or EVEX-coded (AVX): the kernel takes its opcode for one of the old
    /// map, and goes on elsewhere (`vpbroadcastb` for a jump).
    Vector,
    /// In a section or segment that holds no code.
    NotExecutable,
    /// No segment loads it.
    NotLoaded,
    /// The file ends before it.
    OutsideFile,
}

impl Skip {
    /// For JSON, tables and summaries.
    pub fn id(self) -> &'static str {
        match self {
            Skip::Alias { .. } => "alias",
            Skip::Imported => "imported",
            Skip::ZeroSize => "zero-size",
            Skip::IfuncResolver => "ifunc",
            Skip::LinkageStub => "plt",
            Skip::Absolute => "absolute",
            Skip::Vector => "vector",
            Skip::NotExecutable => "not-executable",
            Skip::NotLoaded => "not-loaded",
            Skip::OutsideFile => "outside-file",
        }
    }

    /// In words.
    pub fn reason(self) -> &'static str {
        match self {
            Skip::Alias { .. } => "another name of an address that is probed by its best name",
            Skip::Imported => "defined in another file",
            Skip::ZeroSize => "covers no code: its size is 0",
            Skip::IfuncResolver => "an ifunc: the loader calls it once, to resolve the name",
            Skip::LinkageStub => "a stub of the linkage table, which jumps to another file's function",
            Skip::Absolute => "no address of this file",
            Skip::Vector => "begins with AVX code, which kernels execute wrongly where a probe is",
            Skip::NotExecutable => "not in a section or segment of code",
            Skip::NotLoaded => "no segment loads it",
            Skip::OutsideFile => "the file ends before it",
        }
    }
}

/// What a probe costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeCost {
    /// The kernel executes the instruction itself: 0.7 to 0.9 µs a call (measured on Linux 6.18).
    Emulated,
    /// A copy of the instruction is run in the process, with a second trap: 11 to 13 µs.
    SingleStepped,
    /// Nothing is known of this machine's instructions, or the bytes are none.
    Unknown,
}

impl ProbeCost {
    /// For JSON.
    pub fn id(self) -> &'static str {
        match self {
            ProbeCost::Emulated => "emulated",
            ProbeCost::SingleStepped => "single-stepped",
            ProbeCost::Unknown => "unknown",
        }
    }
}

/// Where a function is probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeSite {
    /// Bytes after the entry.
    pub after_entry: u8,
    pub cost: ProbeCost,
    /// For arguments 1 to 6 the one in whose register each of them is there. For arguments that were not
    /// requested the value means nothing.
    pub arguments: [u8; 6],
}

impl ProbeSite {
    /// At the entry everything is where it belongs.
    pub const fn at_entry(cost: ProbeCost) -> ProbeSite {
        ProbeSite { after_entry: 0, cost, arguments: [1, 2, 3, 4, 5, 6] }
    }

    /// Of a function with its entry at this file offset.
    pub fn of(&self, entry: u64) -> u64 {
        entry.saturating_add(u64::from(self.after_entry))
    }
}

/// After the function's name: `+0x3` where it is not probed at its entry.
impl fmt::Display for ProbeSite {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.after_entry {
            0 => Ok(()),
            after => write!(to, "+{after:#x}"),
        }
    }
}

/// A function as a table shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedFunction<'a> {
    pub svma: u64,
    pub offset: Option<u64>,
    /// Bytes.
    pub size: u64,
    pub binding: Binding,
    pub kind: FunctionKind,
    pub sources: Sources,
    pub current_version: bool,
    pub probe: Probe,
    /// Of one that can be probed.
    pub site: Option<ProbeSite>,
    /// As in the symbol table.
    pub name: &'a str,
    /// For people; the same where nothing was mangled.
    pub demangled: &'a str,
    /// The name that an alias is probed by.
    pub alias_of: Option<&'a str>,
}

/// How many functions of some can be probed, and why the others cannot.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ProbeSummary {
    pub functions: u64,
    pub probeable: u64,
    /// Of these: with a probe that is single-stepped.
    pub single_stepped: u64,
    /// By reason; all aliases together.
    pub skipped: BTreeMap<Skip, u64>,
}

impl ProbeSummary {
    pub fn add(&mut self, probe: Probe) {
        self.functions += 1;
        match probe {
            Probe::Yes => self.probeable += 1,
            Probe::No(Skip::Alias { .. }) => *self.skipped.entry(Skip::Alias { of: 0 }).or_default() += 1,
            Probe::No(skip) => *self.skipped.entry(skip).or_default() += 1,
        }
    }

    /// The same, of one whose place is known.
    pub fn add_listed(&mut self, function: &ListedFunction<'_>) {
        self.add(function.probe);
        self.single_stepped +=
            u64::from(function.site.is_some_and(|site| site.cost == ProbeCost::SingleStepped));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binding {
    Local,
    Global,
    Weak,
    /// STB_GNU_UNIQUE.
    Unique,
    /// One that no standard names.
    Other(u8),
}

impl Binding {
    pub fn id(self) -> &'static str {
        match self {
            Binding::Local => "local",
            Binding::Global => "global",
            Binding::Weak => "weak",
            Binding::Unique => "unique",
            Binding::Other(_) => "other",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FunctionKind {
    Function,
    /// STT_GNU_IFUNC.
    Ifunc,
    /// STT_NOTYPE with a size, in a section of code: assembly.
    Untyped,
}

impl FunctionKind {
    pub fn id(self) -> &'static str {
        match self {
            FunctionKind::Function => "function",
            FunctionKind::Ifunc => "ifunc",
            FunctionKind::Untyped => "untyped",
        }
    }
}

/// A table of symbols.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Source {
    Symtab = 1,
    Dynsym = 2,
    DebugFile = 4,
    MiniDebug = 8,
}

impl Source {
    pub const ALL: [Source; 4] = [Source::Symtab, Source::Dynsym, Source::DebugFile, Source::MiniDebug];

    pub fn id(self) -> &'static str {
        match self {
            Source::Symtab => "symtab",
            Source::Dynsym => "dynsym",
            Source::DebugFile => "debug-file",
            Source::MiniDebug => "gnu_debugdata",
        }
    }

    /// For a narrow column.
    pub fn short(self) -> &'static str {
        match self {
            Source::Symtab => "sym",
            Source::Dynsym => "dyn",
            Source::DebugFile => "debug",
            Source::MiniDebug => "mini",
        }
    }
}

/// A set of tables.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sources(u8);

impl Sources {
    pub fn contains(self, source: Source) -> bool {
        self.0 & source as u8 != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Source> {
        Source::ALL.into_iter().filter(move |&source| self.contains(source))
    }

    pub fn with(self, other: Sources) -> Sources {
        Sources(self.0 | other.0)
    }
}

impl From<Source> for Sources {
    fn from(source: Source) -> Sources {
        Sources(source as u8)
    }
}
