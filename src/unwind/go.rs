//! Functions of Go's that no unwind information, or not the right one, leads out of (src/runtime/asm_amd64.s of Go 1.19
//! to 1.27).

use super::rule::{Rule, of_frame_size};
use super::space::MappedModule;
use crate::objects::Object;

/// These have no caller (`TOPFRAME` in the sources).
const ROOTS: [&[u8]; 4] = [b"runtime.rt0_go", b"runtime.goexit", b"runtime.mstart", b"_rt0_amd64_linux"];

/// These go on on the thread's own stack, and leave the goroutine's behind: above them lie old
/// bytes. Where the goroutine's were copied, the stack goes on there (`left`).
const SWITCHES: [&[u8]; 3] = [b"runtime.systemstack", b"runtime.mcall", b"runtime.morestack"];

/// Calls C, on the thread's own stack: from the goroutine's, or where it is on the thread's own already, there.
const CALLS_C: &[u8] = b"runtime.asmcgocall";

/// These call C on a stack that they align, which their unwind information does not say: rbp alone leads on
/// (src/runtime/sys_linux_amd64.s).
const ALIGNED: [&[u8]; 3] = [b"runtime.callCgoMmap", b"runtime.callCgoMunmap", b"runtime.callCgoSigaction"];

/// Calls Go, from C.
const CALLED_BACK: &[u8] = b"runtime.cgocallback";

/// Represents the switch on a goroutine's stack. Up to Go 1.20 its address is its first instruction's, also where it
/// is a return address (`cgocallback`).
const SWITCHED: &[u8] = b"runtime.systemstack_switch";

/// The rule for an address in such a function of a Go program.
pub fn special_rule(placed: &MappedModule, address: u64) -> Option<Rule> {
    let object = placed.object.as_ref().filter(|object| object.is_go())?;
    let (name, _) = object.function_named(placed.svma(address)?)?;
    let name = plain(&name);
    if ROOTS.contains(&name) {
        Some(Rule::Root)
    } else if SWITCHES.contains(&name) {
        Some(Rule::StackSwitch)
    } else if name == CALLS_C {
        Some(Rule::CallsOut)
    } else if ALIGNED.contains(&name) {
        Some(Rule::Linked)
    } else {
        None
    }
}

/// The rule for an address that no unwind information covers, by the table that the program has for its own stacks: as
/// `.debug_frame` has it, which the linker makes of that table (src/cmd/link/internal/ld/dwarf.go, `writeframes`).
pub fn table_rule(object: &Object, svma: u64) -> Option<Rule> {
    of_frame_size(object.go_functions()?.frame_size(object, svma)?)
}

/// True for a return address that is the first instruction of the function that represents a switch.
pub fn is_switched(placed: &MappedModule, address: u64) -> bool {
    let Some(object) = placed.object.as_ref().filter(|object| object.is_go()) else { return false };
    let Some(svma) = placed.svma(address) else { return false };
    object.function_named(svma).is_some_and(|(name, start)| start == svma && plain(&name) == SWITCHED)
}

/// In the function through which C calls Go.
pub fn is_called_back(placed: &MappedModule, address: u64) -> bool {
    let Some(object) = placed.object.as_ref().filter(|object| object.is_go()) else { return false };
    let function = placed.svma(address).and_then(|svma| object.function_named(svma));
    function.is_some_and(|(name, _)| plain(&name) == CALLED_BACK)
}

/// Without the mark of the assembler's calling convention.
fn plain(name: &[u8]) -> &[u8] {
    name.strip_suffix(b".abi0").unwrap_or(name)
}
