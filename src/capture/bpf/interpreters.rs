//! The files with interpreters that the BPF programs recognise (bpf/managed.h), written in shared memory; and
//! the processes that have one already.

use super::counter;
use super::counts::Counts;
use super::shared::SharedArray;
use super::skel::types::{
    vmaudit_counts, vmaudit_interpreter, vmaudit_interpreter_file as Entry,
    vmaudit_interpreter_files as Files, vmaudit_layout, vmaudit_left_stacks, vmaudit_not_there,
};
use crate::capture::plain::bytes_of;
use crate::capture::{CaptureError, InterpreterFile, Interpreters};
use crate::model::MmKey;
use crate::model::stack::{FoundInterpreter, FoundRuntime, InterpreterLayout, LeftStackLayout, Running};
use libbpf_rs::{MapCore, MapFlags as UpdateFlags, MapHandle, MapMut};
use nix::sys::mman::ProtFlags;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const NOT_THERE: u16 = vmaudit_not_there::VMAUDIT_NOT_THERE.0 as u16;

pub struct InterpreterTable {
    files: SharedArray,
    mapped: MapHandle,
    counts: Counts,
}

impl InterpreterTable {
    /// # Errors
    /// When the kernel does not map it.
    pub(super) fn of(
        files: impl AsFd,
        mapped: &MapMut<'_>,
        counters: impl AsFd,
    ) -> Result<InterpreterTable, CaptureError> {
        let mapped = MapHandle::try_from(mapped).map_err(CaptureError::Load)?;
        let counts = Counts::of::<vmaudit_counts>(counters)?;
        let files = SharedArray::of::<Files>(files, 1, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        Ok(InterpreterTable { files, mapped, counts })
    }
}

impl Interpreters for InterpreterTable {
    fn publish(&mut self, file: &InterpreterFile) -> Option<u64> {
        let files: NonNull<Files> = self.files.first();
        // SAFETY: the mapping is one of these, for the life of `self`; nothing else writes it.
        let count = unsafe { AtomicU64::from_ptr(&raw mut (*files.as_ptr()).count) };
        let index = count.load(Ordering::Relaxed);
        if index as usize >= Files::default().file.len() {
            return None;
        }
        // SAFETY: `index` is within the entries, and the kernel's side does not read this one yet.
        unsafe { (&raw mut (*files.as_ptr()).file[index as usize]).write_volatile(entry(file)) };
        count.store(index + 1, Ordering::SeqCst);
        Some(index)
    }

    fn is_mapped(&mut self, mm: MmKey, runtime: u64, file: u64) {
        let value = vmaudit_interpreter { runtime, file };
        // Without it, as without an interpreter.
        let _ = self.mapped.update(&mm.0.to_ne_bytes(), bytes_of(&value), UpdateFlags::ANY);
        let files: NonNull<Files> = self.files.first();
        // SAFETY: the mapping is one of these, for the life of `self`; the kernel's side writes nothing else there.
        unsafe { AtomicU64::from_ptr(&raw mut (*files.as_ptr()).mapped) }.store(1, Ordering::SeqCst);
    }

    fn lost(&self) -> u64 {
        self.counts.sum(counter::LOST_MANAGED)
    }
}

fn entry(file: &InterpreterFile) -> Entry {
    let of_file = match &file.found {
        FoundRuntime::Interpreter(found) => interpreter(found),
        FoundRuntime::LeavesStacks(found) => Entry { left_stacks: left_stacks(found), ..Entry::default() },
    };
    let (runtime, (address, offset)) = (file.found.address(), file.code);
    Entry {
        from_start: runtime.wrapping_sub(address.wrapping_sub(offset)),
        from_code: runtime.wrapping_sub(address),
        ino: file.inode,
        dev: file.major << 20 | file.minor & 0xf_ffff,
        code_offset: file.code_offset(),
        ..of_file
    }
}

fn left_stacks(of: &LeftStackLayout) -> vmaudit_left_stacks {
    let (running, in_word) = match of.running {
        Running::Offset(offset) => (i64::from(offset), false),
        Running::Word(_) => (0, true),
    };
    vmaudit_left_stacks {
        running,
        running_in_word: u16::from(in_word),
        thread: of.thread,
        current: of.current,
        stack_pointer: of.stack_pointer,
        instruction: of.instruction,
        frame_pointer: of.frame_pointer,
        ..vmaudit_left_stacks::default()
    }
}

fn interpreter(found: &FoundInterpreter) -> Entry {
    Entry {
        code_type: found.code_type.wrapping_sub(found.runtime),
        text_type: found.text_type.wrapping_sub(found.runtime),
        bytes_type: found.bytes_type.wrapping_sub(found.runtime),
        layout: layout(&found.layout),
        ..Entry::default()
    }
}

fn layout(of: &InterpreterLayout) -> vmaudit_layout {
    let (run_frame, run_previous) = of.runs.unwrap_or((NOT_THERE, NOT_THERE));
    vmaudit_layout {
        interpreters: of.interpreters,
        interpreter_next: of.interpreter_next,
        interpreter_threads: of.interpreter_threads,
        thread_next: of.thread_next,
        thread_previous: of.thread_previous,
        thread_id: of.thread_id,
        thread_frame: of.thread_frame,
        run_frame,
        run_previous,
        frame_code: of.frame_code,
        frame_previous: of.frame_previous,
        frame_instruction: of.frame_instruction,
        frame_owner: of.frame_owner,
        frame_entry: of.frame_entry.unwrap_or(NOT_THERE),
        code_first_line: of.code_first_line,
        code_names: of.code_names,
        code_first_traceable: of.code_first_traceable,
        code_bytes: of.code_bytes,
        object_type: of.object_type,
        object_size: of.object_size,
        bytes_data: of.bytes_data,
        text_length: of.text_length,
        text_state: of.text_state,
        text_ascii: of.text_ascii,
        text_other: of.text_other,
        foreign_owner: of.foreign_owner,
    }
}
