//! First instructions that must not be probed, although the kernel accepts it.

use super::facts::Function;
use crate::model::{Probe, Skip};
use crate::objects::Object;

/// Bytes read at a time; functions are examined by address.
const WINDOW: u64 = 256 << 10;

/// Marks the functions whose first instruction is VEX-, EVEX- or XOP-coded, or has a REX2 prefix.
///
/// At a uprobe, the kernel emulates jumps, calls, pushes and nops, and corrects what others did out of their
/// place. It recognises them by the opcode alone, as if it were of the one-byte map
/// (arch/x86/kernel/uprobes.c, `branch_setup_ops`, `push_setup_ops`, `default_post_xol_op`; seen in 6.18):
/// `vpbroadcastb %esi,%ymm16`, EVEX opcode 7A, becomes `jp`. With a probe on `__strchrnul_evex` no printf(3)
/// of any process on the machine prints its arguments.
pub(super) fn leave_out_vector_code(object: &Object, functions: &mut [Function]) {
    let mut window = (0u64, Vec::new());
    for function in functions.iter_mut().filter(|function| function.probe == Probe::Yes) {
        let Some(offset) = function.offset else { continue };
        match first_byte(object, offset, &mut window) {
            Some(byte) if is_vector(byte) => function.probe = Probe::No(Skip::Vector),
            Some(_) => {}
            // Shorter than it was a moment ago.
            None => function.probe = Probe::No(Skip::OutsideFile),
        }
    }
}

fn first_byte(object: &Object, offset: u64, (start, bytes): &mut (u64, Vec<u8>)) -> Option<u8> {
    let at = |start: u64, bytes: &[u8]| bytes.get(usize::try_from(offset.checked_sub(start)?).ok()?).copied();
    if let Some(byte) = at(*start, bytes) {
        return Some(byte);
    }
    let left = object.size()?.checked_sub(offset)?;
    *bytes = object.read(offset, left.min(WINDOW)).ok()?;
    *start = offset;
    at(*start, bytes)
}

/// In 64-bit mode these begin nothing else (Intel SDM, volume 2, table 2-1 and A-2), but for 8f, which
/// is also `pop` to memory: no function begins with that.
fn is_vector(byte: u8) -> bool {
    matches!(byte, 0xc4 | 0xc5 | 0x62 | 0xd5 | 0x8f)
}
