//! What the last column of `/proc/PID/maps` (or a dentry's path) says about a mapping
//! (fs/proc/task_mmu.c, `show_map_vma`; arch/x86/entry/vdso/vma.c).

use super::region::RegionKind;
use super::space::origins::FileTable;
use super::space::piece::{Attributes, Owner};
use crate::model::{FileRef, Mapping, Sharing};

/// Kind of a file mapping by the file's path, without " (deleted)".
pub(super) fn file_kind(path: &[u8], sharing: Sharing) -> RegionKind {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    match path {
        b"/dev/zero" => match sharing {
            Sharing::Shared => RegionKind::SharedAnonymous,
            Sharing::Private => RegionKind::Anonymous,
        },
        b"/anon_hugepage" => RegionKind::HugeTlb,
        b"/[aio]" => RegionKind::AioRing,
        _ if path.starts_with(b"/SYSV") => RegionKind::SysvShm,
        _ if path.starts_with(b"/dev/hugepages/") => RegionKind::HugeTlb,
        _ => RegionKind::File,
    }
}

/// Kind of a mapping that no call explains.
pub(super) fn mapping_kind(mapping: &Mapping) -> RegionKind {
    let name = mapping.name.as_slice();
    if is_kernel_name(name) {
        return if name == b"[stack]" { RegionKind::Stack } else { RegionKind::Special };
    }
    if name == b"[heap]" {
        return RegionKind::Brk;
    }
    if name.starts_with(b"[anon_shmem:") {
        return RegionKind::SharedAnonymous;
    }
    if mapping.file.is_some() {
        return file_kind(name, mapping.sharing);
    }
    RegionKind::Anonymous
}

/// `[stack]`, `[vdso]`, `[vvar]`, `[vvar_vclock]`, `[uprobes]` …: only the kernel maps those.
pub(super) fn is_kernel_name(name: &[u8]) -> bool {
    name.first() == Some(&b'[') && name != b"[heap]" && !name.starts_with(b"[anon")
}

/// Attributes of a mapping that was read from maps.
pub(super) fn attributes_of(mapping: &Mapping, owner: Owner, files: &mut FileTable) -> Attributes {
    let special = is_kernel_name(&mapping.name);
    let vdso = mapping.is_special("[vdso]");
    let file = match mapping.file_ref() {
        Some(file) => Some(files.intern(&file)),
        None if vdso => Some(files.intern(&FileRef {
            major: 0,
            minor: 0,
            inode: 0,
            path: mapping.name.clone(),
            deleted: false,
        })),
        None => None,
    };
    Attributes {
        owner: if special { Owner::Kernel } else { owner },
        prot: mapping.prot,
        sharing: mapping.sharing,
        kind: mapping_kind(mapping),
        grows_down: mapping.is_special("[stack]"),
        module: mapping.prot.exec && file.is_some(),
        offset: if file.is_some() { mapping.offset } else { 0 },
        file,
    }
}
