//! What a piece of address space turned out to be, and on which evidence.

use crate::model::{Addr, EventId, Tid};
use std::ops::Deref;

/// A row of the report. Rules declare theirs as constants; ids are a contract
/// (docs/report.md) and never change once published. Each of tens of thousands of pieces has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub struct Category(pub &'static CategoryInfo);

impl Deref for Category {
    type Target = CategoryInfo;

    fn deref(&self) -> &CategoryInfo {
        self.0
    }
}

/// What a rule declares of its category.
#[derive(PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub struct CategoryInfo {
    pub id: &'static str,
    /// `0xRRGGBB`, in HTML, SVG and `top`.
    pub color: u32,
    /// The row's label: plural, as a person would say it.
    pub name: &'static str,
    /// One such thing, for titles.
    pub one: &'static str,
    /// Several of them, for titles ("4 …").
    pub many: &'static str,
}

/// What a claim rests on, in order of trust.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Evidence {
    /// The kernel itself says so (kind of mapping).
    Kernel,
    /// A VMA name, or the file's name.
    Name,
    /// The call stack that created it.
    Stack,
    /// A structure read from the process's memory.
    Header,
    /// A thread's stack pointer lies (or lay at its creation) in it.
    Thread,
    /// Only its shape: size, alignment, protection, neighbours.
    Shape,
}

impl Evidence {
    /// As the report spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Evidence::Kernel => "kernel",
            Evidence::Name => "name",
            Evidence::Stack => "stack",
            Evidence::Header => "header",
            Evidence::Thread => "thread",
            Evidence::Shape => "shape",
        }
    }
}

/// Which pieces make up one thing: an arena has a used and a reserved part, a stack its guard,
/// a library several segments. Counted once in the report's `regions`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Instance {
    /// Everything that one call mapped.
    Call(EventId),
    /// Everything that belongs to the thing starting here.
    At(Addr),
    /// Everything of that name (a file's path).
    Named(Vec<u8>),
}

/// Which pieces share a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Merge {
    /// Those whose creating stacks agree from this line of the stack outwards: the same
    /// caller may reach mmap through different branches of one allocator.
    ByCaller(usize),
    /// Those with the same whole stack.
    ByStack,
    /// All of the category: the stack says nothing (start-up, kernel).
    ByCategory,
    /// All of the category that are of this kind, where a runtime has several that have nothing to do
    /// with each other.
    ByKind(&'static str),
}

/// A rule's verdict on one piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    pub category: Category,
    pub evidence: Evidence,
    /// Which part of the thing, in the field's words ("arena reserved part", "guard").
    pub part: &'static str,
    /// None: what the call mapped (or, without a call, the piece itself).
    pub instance: Option<Instance>,
    /// The thread it belongs to, where that is not the one that made the call.
    pub thread: Option<Tid>,
    pub merge: Merge,
    /// What the purged and untouched bytes inside are called, where the allocator keeps such
    /// ranges for later; None: not cut apart.
    pub purged_part: Option<&'static str>,
    /// The rule that is data (`AuditInput::rules`) and says what it is in particular.
    pub label: Option<usize>,
}

impl Claim {
    pub fn new(category: Category, evidence: Evidence, part: &'static str) -> Claim {
        Claim {
            category,
            evidence,
            part,
            instance: None,
            thread: None,
            merge: Merge::ByStack,
            purged_part: None,
            label: None,
        }
    }

    pub fn instance(mut self, instance: Instance) -> Claim {
        self.instance = Some(instance);
        self
    }

    pub fn merge(mut self, merge: Merge) -> Claim {
        self.merge = merge;
        self
    }

    pub fn thread(mut self, thread: Option<Tid>) -> Claim {
        self.thread = thread;
        self
    }

    pub fn label(mut self, rule: usize) -> Claim {
        self.label = Some(rule);
        self
    }

    pub fn purged_part(mut self, part: &'static str) -> Claim {
        self.purged_part = Some(part);
        self
    }
}

/// Of what no rule claims.
pub const UNKNOWN: Category = Category(&CategoryInfo {
    id: "unknown",
    color: 0xea6e51,
    name: "unknown",
    one: "memory of unknown purpose",
    many: "mappings of unknown purpose",
});
