//! The vocabulary that all modules share: addresses, sizes, events, stacks, mappings.
//!
//! Imports `std` only, and the kernel's numbers. No I/O, no clock, no allocator-specific knowledge.

pub mod addr;
pub mod arenas;
pub mod cgroup;
mod clean;
pub mod event;
pub mod function;
pub mod hash;
pub mod headers;
pub mod heap;
pub mod held_call;
pub mod journal;
pub mod limits;
pub mod mapping;
pub mod marks;
pub mod observation;
pub mod path;
pub mod reach;
pub mod refusal;
pub mod sample;
pub mod stack;
pub mod symbol;
pub mod time_zero;
pub mod timeline;
pub mod touch;
pub mod trial;

pub use addr::{Addr, AddrRange, Bytes, PAGE, USER_END};
pub use cgroup::{CgroupHierarchy, CgroupKey};
pub use clean::clean;
pub use event::{EventId, FileRef, MmKey, NoStack, Pid, Task, Tid, VmEvent, VmOp};
pub use function::{
    Binding, FunctionKind, ListedFunction, Probe, ProbeCost, ProbeSite, ProbeSummary, Skip, Source, Sources,
};
pub use heap::{ContextKey, Covers, HeapEvent, HeapOp};
pub use held_call::{Arrival, Ended, HeldCall, HeldCalls};
pub use journal::Step;
pub use limits::{CgroupLimit, HugePages, Limits, Overcommit};
pub use mapping::prot::{Prot, Sharing};
pub use mapping::vma_detail::{VmFlags, VmaDetail, VmaDetails};
pub use mapping::{Mapping, MappingFile};
pub use marks::{CodeMarks, EXPORTS_MALLOC, FileMarks, NOT_ELF, Sign};
pub use observation::Observations;
pub use refusal::{Missing, Part, Refusal};
pub use sample::{StackSample, UnwindRow};
pub use stack::{
    Completeness, Frame, FrameKind, GENERATED, ModuleId, ModuleInfo, SourcePlace, Stack, StackId, StackTable,
};
pub use symbol::{FunctionName, SourceLine, SymbolFrame, SymbolizedStacks};
pub use time_zero::TimeZero;
pub use timeline::{CategorySize, SizePoint};
pub use touch::Touch;
pub use trial::{Capabilities, Capability, LoadTrial, Outcome, Privileges, ProgramTrial, Trial, TrialArea};
