//! The executable mappings of one address space, and finding an address in them.

use crate::model::{Addr, AddrRange, FileRef, Frame, FrameKind, MmKey, ModuleId, Pid};
use crate::objects::{FileKey, Object};
use std::sync::Arc;

/// An executable mapping, as the ledger has it.
#[derive(Clone, Copy, Debug)]
pub struct ExecMapping<'a> {
    pub range: AddrRange,
    /// File offset of `range.start`, bytes.
    pub offset: u64,
    /// None for anonymous executable memory (generated code). The vdso has the path `[vdso]`.
    pub file: Option<&'a FileRef>,
}

/// Which state of which address space a list of mappings shows.
#[derive(Clone, Copy, Debug)]
pub struct SpaceState {
    pub mm: MmKey,
    /// Any number that changes when the executable mappings do.
    pub generation: u64,
    /// A process that lives in it: the way to its files.
    pub pid: Pid,
}

/// A module at its place.
#[derive(Clone)]
pub(super) struct MappedModule {
    pub range: AddrRange,
    pub offset: u64,
    pub key: Option<FileKey>,
    pub module: Option<ModuleId>,
    pub object: Option<Arc<Object>>,
}

impl MappedModule {
    /// Code that was made at run time, of no file.
    pub fn is_generated(&self) -> bool {
        self.key.is_none()
    }

    pub fn file_offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.range.start.0).wrapping_add(self.offset)
    }

    /// The difference between a frame's address and one in memory: frames have the place in the file, or with generated code the
    /// address itself.
    pub fn delta(&self) -> u64 {
        match self.is_generated() {
            true => 0,
            false => self.offset.wrapping_sub(self.range.start.0),
        }
    }

    /// The address as the file states it.
    pub fn svma(&self, address: u64) -> Option<u64> {
        self.object.as_ref()?.layout().svma_of(self.file_offset(address))
    }

    /// As [`MappedModule::svma`], also for an address in another part of the same file: its parts are mapped
    /// at the distances that the file states.
    pub fn svma_near(&self, address: u64) -> Option<u64> {
        Some(self.svma(self.range.start.0)?.wrapping_add(address.wrapping_sub(self.range.start.0)))
    }

    pub fn is_same(&self, mapping: &ExecMapping<'_>) -> bool {
        self.range == mapping.range
            && self.key == mapping.file.map(FileKey::from)
            && (self.key.is_none() || self.offset == mapping.offset)
    }
}

/// An address space's executable mappings, sorted.
#[derive(Clone)]
pub(super) struct Space {
    /// Never the same for two lists: what caches are keyed by. A fork's child shares it.
    pub id: u64,
    pub generation: u64,
    /// Whose memory generated code is read from.
    pub pid: Pid,
    pub placed: Arc<[MappedModule]>,
}

/// The modules of one state of an address space.
#[derive(Clone)]
pub struct Modules(Arc<[MappedModule]>);

impl Modules {
    /// The frame of an address that a call returns to.
    pub fn returns_to(&self, address: u64) -> Option<Frame> {
        let placed = find(&self.0, address.wrapping_sub(1))?;
        let address = address.wrapping_add(placed.delta());
        Some(Frame { module: placed.module, address, kind: FrameKind::ReturnAddress })
    }
}

fn find(placed: &[MappedModule], address: u64) -> Option<&MappedModule> {
    let after = placed.partition_point(|p| p.range.start.0 <= address);
    let placed = placed.get(after.checked_sub(1)?)?;
    placed.range.contains(Addr(address)).then_some(placed)
}

impl Space {
    pub fn modules(&self) -> Modules {
        Modules(Arc::clone(&self.placed))
    }

    pub fn find(&self, address: u64) -> Option<&MappedModule> {
        find(&self.placed, address)
    }
}
