//! Go's functions at which a stack ends without its unwind information saying so
//! (src/runtime/asm_amd64.s of Go 1.19; newer ones mark the roots).

use super::rule::Rule;
use super::space::MappedModule;

/// Nobody called these (`TOPFRAME` in the sources).
const ROOTS: [&[u8]; 4] = [b"runtime.rt0_go", b"runtime.goexit", b"runtime.mstart", b"_rt0_amd64_linux"];

/// These go on on the thread's own stack, and leave the goroutine's behind: above them lie old
/// bytes.
const SWITCHES: [&[u8]; 4] =
    [b"runtime.systemstack", b"runtime.mcall", b"runtime.asmcgocall", b"runtime.morestack"];

/// The rule for an address in such a function of a Go program that has symbols.
pub fn special_rule(placed: &MappedModule, address: u64) -> Option<Rule> {
    let object = placed.object.as_ref().filter(|object| object.is_go())?;
    let function = object.function_symbols().covering(placed.svma(address)?)?;
    let name = function.name.strip_suffix(b".abi0").unwrap_or(function.name);
    if ROOTS.contains(&name) {
        Some(Rule::Root)
    } else if SWITCHES.contains(&name) {
        Some(Rule::StackSwitch)
    } else {
        None
    }
}
