//! The vocabulary that all modules share: addresses, sizes, events, stacks, mappings.
//!
//! Imports `std` only, and the kernel's numbers. No I/O, no clock, no allocator-specific knowledge.

pub mod addr;
pub mod arenas;
pub mod cgroup;
mod clean;
pub mod event;
pub mod function_table;
pub mod hash;
pub mod headers;
pub mod heap;
pub mod held_call;
pub mod mapping;
pub mod number;
pub mod observation;
pub mod path;
pub mod sample;
pub mod stack;
pub mod symbol;
pub mod timeline;
pub mod toml_file;
pub mod trial;
pub mod wait_status;

pub use addr::{Addr, AddrRange, Bytes, PAGE, USER_END};
pub use cgroup::{CgroupHierarchy, CgroupKey};
pub use clean::{clean, is_hidden};
pub use event::journal::Step;
pub use event::time_zero::TimeZero;
pub use event::touch::Touch;
pub use event::{EventId, FileRef, MmKey, NoStack, Pid, Task, Tid, VmEvent, VmOp};
pub use heap::{ContextKey, Covers, HeapEvent, HeapOp};
pub use held_call::{Arrival, Ended, HeldCall, HeldCalls};
pub use mapping::prot::{Prot, Sharing};
pub use mapping::vma_detail::{VmFlags, VmaDetail, VmaDetails};
pub use mapping::{Mapping, MappingFile};
pub use observation::Observations;
pub use observation::limits::{CgroupLimit, HugePages, Limits, Overcommit};
pub use observation::marks::{CodeMarks, EXPORTS_MALLOC, FileMarks, NOT_ELF, Sign};
pub use sample::{ExpectedWord, LeftStack, StackSample, StackWord, UnwindRow};
pub use stack::{
    Completeness, Frame, FrameKind, GENERATED, ModuleId, ModuleInfo, SourcePlace, Stack, StackId, StackTable,
};
pub use symbol::function::{
    Binding, FunctionKind, ListedFunction, Probe, ProbeCost, ProbeSite, ProbeSummary, Skip, Source, Sources,
};
pub use symbol::{FunctionName, SourceLine, SymbolFrame, SymbolizedStacks};
pub use timeline::{CategorySize, SizePoint};
pub use trial::refusal::{Missing, Part, Refusal};
pub use trial::{Capabilities, Capability, LoadTrial, Outcome, Privileges, ProgramTrial, Trial, TrialArea};
