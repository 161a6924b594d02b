//! Structures of the kernel's side and of the preloaded library as bytes.

use super::bpf::skel::types::{
    touch_state, vmaudit_found, vmaudit_interpreter, vmaudit_known_stack, vmaudit_managed_frame,
    vmaudit_record,
};
use super::heap::skel::types::{
    block_key, vmaudit_heap_brief, vmaudit_heap_rule, vmaudit_heap_rule_key, vmaudit_heap_site,
    vmaudit_heap_site_key, vmaudit_newcomer,
};
use super::preload::layout::Hello;
use std::mem::size_of;

/// Integers without padding: each of its bytes is initialised, and any bytes are a value of it.
///
/// # Safety
/// The type has to be that.
pub(super) unsafe trait Plain: Copy {}

/// Each with the sum of its fields' sizes, which leaves no space for padding.
macro_rules! plain {
    ($($type:ty = $bytes:literal),* $(,)?) => {
        $(
            const _: () = assert!(size_of::<$type>() == $bytes);
            // SAFETY: it is made of integers and arrays of integers, and its size is theirs.
            unsafe impl Plain for $type {}
        )*
    };
}

plain! {
    vmaudit_record = 216,
    vmaudit_found = 40,
    vmaudit_known_stack = 1352,
    vmaudit_managed_frame = 24,
    vmaudit_interpreter = 16,
    touch_state = 56,
    vmaudit_heap_brief = 72,
    vmaudit_heap_rule_key = 16,
    vmaudit_heap_rule = 8,
    vmaudit_heap_site_key = 32,
    vmaudit_heap_site = 64,
    block_key = 16,
    vmaudit_newcomer = 16,
    // In preload/area.rs, of the same kind.
    Hello = 56,
}

/// What `bytes` begin with; `None` for what is too short.
pub(super) fn value_of<T: Plain>(bytes: &[u8]) -> Option<T> {
    let head = bytes.get(..size_of::<T>())?;
    // SAFETY: any bytes are a `T`, `head` is as long as one, and read_unaligned needs no alignment.
    Some(unsafe { head.as_ptr().cast::<T>().read_unaligned() })
}

pub(super) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: all bytes of a `T` are initialised, and they are borrowed as long as it.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) }
}
