//! V8's built-in functions, which are part of a program's file and have no unwind information.

use super::space::MappedModule;

/// What the linker's symbols of them begin with (src/snapshot/embedded/embedded-file-writer.cc).
const BUILTIN: &[u8] = b"Builtins_";

/// True in a built-in function. V8 finds the frames of its stacks by rbp alone, those of built-in functions and of
/// the code that it generates (StackFrameIterator, src/execution/frames.cc; V8 11.3): each that calls another has
/// linked itself, `[rbp]` to the caller's rbp and `[rbp + 8]` to the return address.
pub fn is_linked(placed: &MappedModule, address: u64) -> bool {
    let Some(object) = &placed.object else { return false };
    let symbol = placed.svma(address).and_then(|svma| object.function_symbols().covering(svma));
    symbol.is_some_and(|symbol| symbol.name.starts_with(BUILTIN))
}
