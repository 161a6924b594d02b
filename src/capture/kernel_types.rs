//! The kernel's types, without those that the BPF objects do not name.
//!
//! libbpf compares the name of every type of the kernel (some 130,000) with each type that an object reads
//! from, a third of the time that loading takes. It is given what it would find, read in one pass: the types
//! of those names and what lies in them by value. What a pointer points to is void there: no relocation goes
//! through one (`bpf_core_parse_spec`), and comparing a field uses the kind alone
//! (`bpf_core_fields_are_compat`).
//!
//! The format is `include/uapi/linux/btf.h`'s.

use crate::model::hash::IntMap;
use libbpf_rs::{ObjectBuilder, libbpf_sys as abi};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::PathBuf;
use std::sync::OnceLock;

/// `CONFIG_DEBUG_INFO_BTF`.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// Of the types that the BPF objects read, as build.rs found them.
const NAMES: &[&str] = include!(concat!(env!("OUT_DIR"), "/kernel_types.rs"));

/// Has an object's types searched for among those alone that our objects name. Where that cannot be, among all: libbpf
/// says then what it lacks.
pub(super) fn give(to: &mut ObjectBuilder) -> libbpf_rs::Result<()> {
    match of_this_kernel() {
        Some((file, _)) => to.btf_custom_path(file).map(drop),
        None => Ok(()),
    }
}

/// The number of `struct task_struct` among all of the kernel's types: a relocation has the one in our file. 0: not
/// known.
pub(super) fn task_struct() -> u32 {
    of_this_kernel().map_or(0, |(_, task_struct)| *task_struct)
}

/// Read once: a run loads two objects, and doctor all of them in several ways.
fn of_this_kernel() -> Option<&'static (PathBuf, u32)> {
    static FILE: OnceLock<Option<(PathBuf, u32)>> = OnceLock::new();
    FILE.get_or_init(|| file_with(NAMES)).as_ref()
}

/// A file with the types of these `names`, there until this process ends. None where the kernel's types cannot be
/// read, or not by these rules.
fn file_with(names: &[&str]) -> Option<(PathBuf, u32)> {
    let Reduced { types, task_struct } = with_names(&std::fs::read(KERNEL).ok()?, names)?;
    let mut file = File::from(memfd_create(c"vmaudit-btf", MFdFlags::MFD_CLOEXEC).ok()?);
    file.write_all(&types).ok()?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    // Where /proc is another namespace's, the number is another process' descriptor or none.
    let seen = std::fs::metadata(&path).ok()?;
    if seen.len() != types.len() as u64 {
        return None;
    }
    let _kept_open = file.into_raw_fd();
    Some((path, task_struct))
}

/// `BTF_KIND_*`.
mod kind {
    use super::abi;

    pub const INT: u32 = abi::BTF_KIND_INT;
    pub const PTR: u32 = abi::BTF_KIND_PTR;
    pub const ARRAY: u32 = abi::BTF_KIND_ARRAY;
    pub const STRUCT: u32 = abi::BTF_KIND_STRUCT;
    pub const UNION: u32 = abi::BTF_KIND_UNION;
    pub const ENUM: u32 = abi::BTF_KIND_ENUM;
    pub const FWD: u32 = abi::BTF_KIND_FWD;
    pub const TYPEDEF: u32 = abi::BTF_KIND_TYPEDEF;
    pub const VOLATILE: u32 = abi::BTF_KIND_VOLATILE;
    pub const CONST: u32 = abi::BTF_KIND_CONST;
    pub const RESTRICT: u32 = abi::BTF_KIND_RESTRICT;
    pub const FUNC: u32 = abi::BTF_KIND_FUNC;
    pub const FUNC_PROTO: u32 = abi::BTF_KIND_FUNC_PROTO;
    pub const VAR: u32 = abi::BTF_KIND_VAR;
    pub const DATASEC: u32 = abi::BTF_KIND_DATASEC;
    pub const FLOAT: u32 = abi::BTF_KIND_FLOAT;
    pub const DECL_TAG: u32 = abi::BTF_KIND_DECL_TAG;
    pub const TYPE_TAG: u32 = abi::BTF_KIND_TYPE_TAG;
    pub const ENUM64: u32 = abi::BTF_KIND_ENUM64;
}

/// In the byte order of the machine.
const MAGIC: u16 = abi::BTF_MAGIC as u16;
/// `struct btf_type` without what follows it.
const TYPE: usize = 12;
/// `struct btf_header` up to `str_len`.
const HEADER: usize = 24;

/// One type's record: `struct btf_type` and what follows it.
#[derive(Clone, Copy)]
struct Record<'a>(&'a [u8]);

impl<'a> Record<'a> {
    /// The first one of `bytes`; None where it is cut, or of a kind that is not known.
    fn first(bytes: &'a [u8]) -> Option<Self> {
        let head = Self(bytes.get(..TYPE)?);
        let members = head.info() as usize & 0xffff;
        let rest = match head.kind() {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::STRUCT | kind::UNION | kind::ENUM64 | kind::DATASEC => 12 * members,
            kind::ENUM | kind::FUNC_PROTO => 8 * members,
            kind::PTR | kind::FWD | kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT => 0,
            kind::FUNC | kind::FLOAT | kind::TYPE_TAG => 0,
            _ => return None,
        };
        bytes.get(..TYPE + rest).map(Self)
    }

    /// `info`.
    fn info(self) -> u32 {
        word(self.0, 4)
    }

    fn kind(self) -> u32 {
        self.info() >> 24 & 0x1f
    }

    /// Where its own and its members' or values' names' offsets are.
    fn names(self) -> impl Iterator<Item = usize> {
        let (start, step) = match self.kind() {
            kind::STRUCT | kind::UNION | kind::ENUM64 => (TYPE, 12),
            kind::ENUM => (TYPE, 8),
            _ => (self.0.len(), TYPE),
        };
        std::iter::once(0).chain((start..self.0.len()).step_by(step))
    }

    /// Where the numbers of the types are that it has by value.
    fn by_value(self) -> impl Iterator<Item = usize> {
        let (start, step) = match self.kind() {
            kind::STRUCT | kind::UNION => (TYPE + 4, 12),
            kind::ARRAY => (TYPE, 4),
            kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => (8, TYPE),
            _ => (self.0.len(), TYPE),
        };
        // An array's third word is its length.
        let end = if self.kind() == kind::ARRAY { TYPE + 8 } else { self.0.len() };
        (start..end).step_by(step)
    }
}

/// The kernel's types by number, from 1 on, and its names.
struct Types<'a> {
    records: Vec<Record<'a>>,
    names: &'a [u8],
}

impl<'a> Types<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.get(..HEADER)?;
        if u16::from_ne_bytes([header[0], header[1]]) != MAGIC {
            return None;
        }
        let part = |offset: usize| {
            let rest = bytes.get((word(header, 4) as usize).checked_add(word(header, offset) as usize)?..)?;
            rest.get(..word(header, offset + 4) as usize)
        };
        let (mut rest, names) = (part(8)?, part(16)?);
        let mut records = Vec::with_capacity(rest.len() / 20);
        while !rest.is_empty() {
            let record = Record::first(rest)?;
            rest = &rest[record.0.len()..];
            records.push(record);
        }
        Some(Self { records, names })
    }

    fn name(&self, offset: u32) -> Option<&'a [u8]> {
        let rest = self.names.get(offset as usize..)?;
        rest.get(..memchr::memchr(0, rest)?)
    }
}

/// Some of the kernel's types.
pub struct Reduced {
    /// As in `/sys/kernel/btf/vmlinux`.
    pub types: Vec<u8>,
    /// The number that `struct task_struct` has among all of them; 0: none, or several.
    pub task_struct: u32,
}

/// Of `kernel`, the types of these `names` and all that they have by value. None if it is not what it should be.
pub fn with_names(kernel: &[u8], names: &[&str]) -> Option<Reduced> {
    let kernel = Types::read(kernel)?;
    let mut tasks = Vec::new();
    let names: HashSet<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let mut kept: Vec<u32> = Vec::new();
    let mut numbers: IntMap<u32, u32> = IntMap::default();
    let mut keep = |number: u32, kept: &mut Vec<u32>| {
        *numbers.entry(number).or_insert_with(|| {
            kept.push(number);
            kept.len() as u32
        })
    };
    for (number, record) in (1u32..).zip(&kernel.records) {
        let named = matches!(record.kind(), kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64);
        let name = if named { kernel.name(word(record.0, 0))? } else { continue };
        if names.contains(name) {
            keep(number, &mut kept);
        }
        if record.kind() == kind::STRUCT && name == b"task_struct" {
            tasks.push(number);
        }
    }
    let (mut types, mut strings) = (Vec::new(), vec![0u8]);
    let mut next = 0;
    while let Some(&number) = kept.get(next) {
        next += 1;
        let record = *kernel.records.get(number as usize - 1)?;
        let at = types.len();
        types.extend_from_slice(record.0);
        for offset in record.names() {
            let name = kernel.name(word(record.0, offset))?;
            let new = if name.is_empty() { 0 } else { strings.len() as u32 };
            put(&mut types, at + offset, new);
            if !name.is_empty() {
                strings.extend_from_slice(name);
                strings.push(0);
            }
        }
        for offset in record.by_value() {
            let used = word(record.0, offset);
            let new = if used == 0 { 0 } else { keep(used, &mut kept) };
            put(&mut types, at + offset, new);
        }
        if record.kind() == kind::PTR {
            put(&mut types, at + 8, 0);
        }
    }
    let mut file = Vec::with_capacity(HEADER + types.len() + strings.len());
    // magic, version 1, no flags, then the lengths of the header and of what follows it
    file.extend_from_slice(&MAGIC.to_ne_bytes());
    file.extend_from_slice(&[1, 0]);
    for word in [HEADER, 0, types.len(), types.len(), strings.len()] {
        file.extend_from_slice(&u32::try_from(word).ok()?.to_ne_bytes());
    }
    file.extend_from_slice(&types);
    file.extend_from_slice(&strings);
    let task_struct = if let [task] = tasks[..] { task } else { 0 };
    Some(Reduced { types: file, task_struct })
}

/// The word at an offset that is within `bytes`.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
}
