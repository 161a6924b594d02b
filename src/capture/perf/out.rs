//! The records of this backend.

use super::sample::{Mapped, SampleId};
use crate::capture::record::{Record, RecordWriter, set_file, to_bytes};
use crate::model::{AddrRange, Mapping, MappingFile, Prot, Sharing};
use crate::sys::abi::MAP_SHARED;

/// Where records go.
pub type Emit<'a> = dyn FnMut(&[u8]) + 'a;

pub struct Out<'a, 'e>(pub &'a mut Emit<'e>);

impl RecordWriter for Out<'_, '_> {
    fn write(&mut self, record: Record, payload: &[u8]) {
        (self.0)(&to_bytes(record, payload));
    }
}

impl Out<'_, '_> {
    /// The file of a mapping, if it has one, before the event that has it.
    pub fn mapped_file(&mut self, record: &mut Record, mapped: &Mapped) {
        if let Some(file) = mapped.file() {
            self.file(record, file, &mapped.name);
            set_file(record, file, &mapped.name);
        }
    }
}

/// A record of a task in an address space.
pub fn record(when: SampleId, mm: u64, op: u16) -> Record {
    let (pid, tid) = (when.pid as u32, when.tid as u32);
    Record { time_ns: when.time_ns, mm, pid, tid, op, ..Record::default() }
}

impl Mapped {
    pub fn file(&self) -> Option<MappingFile> {
        let file = MappingFile { major: self.major, minor: self.minor, inode: self.inode };
        (self.inode != 0).then_some(file)
    }

    pub fn mapping(&self) -> Mapping {
        let shared = u64::from(self.flags) & MAP_SHARED != 0;
        Mapping {
            range: AddrRange::new(self.start, self.start.saturating_add(self.len)),
            // VM_READ, VM_WRITE, VM_EXEC are PROT_READ, PROT_WRITE, PROT_EXEC.
            prot: Prot::from_vm_flags(u64::from(self.prot)),
            sharing: if shared { Sharing::Shared } else { Sharing::Private },
            offset: self.offset,
            file: self.file(),
            name: self.name.clone(),
        }
    }
}
