//! `runtime.MemProfileRate` in a stripped program: the only variable that the functions which have to read it read.

use super::functions::Functions;
use super::module::Module;
use crate::attribution::rules::peek::Peek;
use std::collections::BTreeSet;

/// Both draw the distance to the next sample (src/runtime/malloc.go, `nextSample`), which is compiled into them.
const READERS: [&str; 2] = ["runtime.profilealloc", "runtime.allocmcache"];
/// Passes the rate on to what writes a profile.
const WRITER: &str = "runtime/pprof.writeHeapInternal";
const LONGEST: u64 = 64 << 10;

/// Its address, where exactly one variable fits.
pub fn address(module: &Module, peek: &mut Peek<'_, '_>) -> Option<u64> {
    let functions = Functions::of(module);
    let mut common: Option<BTreeSet<u64>> = None;
    for name in READERS {
        let (from, to) = functions.by_name(name, peek)?;
        let read = read_words(module, (from, to), peek)?;
        common = Some(match common {
            None => read,
            Some(common) => common.intersection(&read).copied().collect(),
        });
    }
    let mut common = common?;
    if let Some(range) = functions.by_name(WRITER, peek) {
        let read = read_words(module, range, peek)?;
        common.retain(|at| read.contains(at));
    }
    (common.len() == 1).then(|| common.into_iter().next())?
}

/// Variables of 8 bytes that the code of a function loads.
#[cfg(target_arch = "x86_64")]
fn read_words(module: &Module, (from, to): (u64, u64), peek: &mut Peek<'_, '_>) -> Option<BTreeSet<u64>> {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};
    let len = to.checked_sub(from).filter(|&len| len <= LONGEST)?;
    let code = peek.bytes(from, len as usize)?;
    let loads = |i: &iced_x86::Instruction| {
        i.mnemonic() == Mnemonic::Mov
            && i.op0_kind() == OpKind::Register
            && i.op0_register().size() == 8
            && i.op1_kind() == OpKind::Memory
            && i.is_ip_rel_memory_operand()
    };
    let decoder = Decoder::with_ip(64, &code, from, DecoderOptions::NONE);
    let read = decoder.into_iter().filter(loads).map(|i| i.ip_rel_memory_address());
    Some(read.filter(|&at| module.variables.contains(crate::model::Addr(at))).collect())
}

#[cfg(not(target_arch = "x86_64"))]
fn read_words(_: &Module, _: (u64, u64), _: &mut Peek<'_, '_>) -> Option<BTreeSet<u64>> {
    None
}
