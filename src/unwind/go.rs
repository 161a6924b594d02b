//! Functions of Go's that no unwind information, or not the right one, leads out of (src/runtime/asm_amd64.s of Go 1.19
//! to 1.27).

use super::rule::Rule;
use super::space::MappedModule;

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

/// Represents the switch on a goroutine's stack. Up to Go 1.20 its address is its first instruction's, also
/// where it is a return address (`cgocallback`).
const SWITCHED: &[u8] = b"runtime.systemstack_switch";

/// The rule for an address in such a function of a Go program that has symbols.
pub fn special_rule(placed: &MappedModule, address: u64) -> Option<Rule> {
    let object = placed.object.as_ref().filter(|object| object.is_go())?;
    let function = object.function_symbols().covering(placed.svma(address)?)?;
    let name = plain(function.name);
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

/// True for a return address that is the first instruction of the function that represents a switch.
pub fn is_switched(placed: &MappedModule, address: u64) -> bool {
    let Some(object) = placed.object.as_ref().filter(|object| object.is_go()) else { return false };
    let Some(svma) = placed.svma(address) else { return false };
    let function = object.function_symbols().covering(svma);
    function.is_some_and(|function| function.range_start == svma && plain(function.name) == SWITCHED)
}

/// Without the mark of the assembler's calling convention.
fn plain(name: &[u8]) -> &[u8] {
    name.strip_suffix(b".abi0").unwrap_or(name)
}
