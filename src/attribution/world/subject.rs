//! The piece that rules classify.

use crate::attribution::call::MmapCall;
use crate::attribution::callpath::CallPath;
use crate::ledger::{OriginRecord, Region, RegionKind};
use crate::model::{AddrRange, Mapping, Sharing, VmaDetail};

/// The piece to be classified.
pub struct Subject<'a> {
    pub range: AddrRange,
    pub region: &'a Region,
    /// The VMA that holds it.
    pub mapping: Option<&'a Mapping>,
    /// What smaps shows of it, where it was read.
    pub detail: Option<&'a VmaDetail>,
    pub record: Option<&'a OriginRecord>,
    pub path: Option<&'a CallPath>,
    pub call: Option<MmapCall>,
    /// All that still belongs to the creating call, else the piece itself.
    pub span: AddrRange,
}

impl Subject<'_> {
    /// Private and anonymous, not brk, not the main stack.
    pub fn is_private_anonymous(&self) -> bool {
        self.region.kind == RegionKind::Anonymous && self.region.sharing == Sharing::Private
    }

    pub fn is_file(&self) -> bool {
        self.region.kind == RegionKind::File
    }

    pub fn is_reserved(&self) -> bool {
        self.region.prot.is_none()
    }

    /// True where smaps was read and shows this VmFlag: "nr", "dc", "hg" …
    pub fn has_flag(&self, flag: &str) -> bool {
        self.detail.is_some_and(|detail| detail.flags.has(flag))
    }

    /// maps' last column.
    pub fn name(&self) -> &[u8] {
        self.mapping.map_or(&[], |m| &m.name)
    }

    /// The name set by PR_SET_VMA_ANON_NAME, from maps or from the (perhaps refused) call.
    pub fn anon_name(&self) -> Option<&[u8]> {
        anon_name(self.name()).or_else(|| self.record?.anon_names.at(self.range.start))
    }

    /// Anonymous and its maker unnamed (stripped) or unknown: only then may a shape decide.
    pub fn shape_may_decide(&self) -> bool {
        !self.path.is_some_and(CallPath::caller_is_named)
    }
}

/// `[anon:NAME]`, `[anon_shmem:NAME]` (fs/proc/task_mmu.c, `show_map_vma`).
pub(super) fn anon_name(maps_name: &[u8]) -> Option<&[u8]> {
    let prefixes = [b"[anon:".as_slice(), b"[anon_shmem:"];
    let name = prefixes.iter().find_map(|prefix| maps_name.strip_prefix(*prefix)?.strip_suffix(b"]"));
    name.filter(|name| !name.is_empty())
}
