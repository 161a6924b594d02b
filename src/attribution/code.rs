//! What a frame can be to its reader, and how the code of an allocator, a runtime, a C library is declared.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The C library's function around the system call: it never is the requesting code.
    Wrapper,
    /// Hands out memory or takes it back. Frames inside of the outermost such are the allocator's own.
    Allocator,
    /// Any other function of the C library.
    Libc,
    Loader,
    /// A managed runtime's, or a sanitizer's.
    Runtime,
    /// Where threads and programs begin, below their own functions.
    Start,
    /// The program's own, and its libraries'. A value that this version does not know, too.
    #[default]
    #[serde(other)]
    Program,
}

/// The code of an allocator, a runtime, a C library, as stacks show it. All by how names begin.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    pub role: Role,
    /// Base names of files: in stripped ones functions have no names.
    pub modules: &'static [&'static str],
    pub functions: &'static [&'static str],
    /// What it puts before `malloc`, `free` and so on.
    pub prefixes: &'static [&'static str],
    /// Functions that run on the thread's stack on behalf of something with a stack of its own, which is not
    /// copied: what called them is not seen.
    pub switches: &'static [&'static str],
    /// What that is called.
    pub on_behalf_of: &'static str,
    /// Source files of a managed language that are the interpreter's own.
    pub own_sources: &'static [&'static str],
    /// How functions of its managed language begin that come with it.
    pub own_managed: &'static [&'static str],
}

impl Code {
    pub const NONE: Code = Code {
        role: Role::Program,
        modules: &[],
        functions: &[],
        prefixes: &[],
        switches: &[],
        on_behalf_of: "",
        own_sources: &[],
        own_managed: &[],
    };
}

const WRAPPERS: [&str; 10] =
    ["mmap", "mmap64", "mremap", "munmap", "mprotect", "madvise", "brk", "sbrk", "shmat", "syscall"];

/// Those of languages that make their system calls themselves. Their names have a package, C's have none.
const PACKAGED: [fn(&str) -> bool; 1] = [super::rules::go::wrappers::is_wrapper];

/// `mmap`, `__mmap64`, `__GI___mmap`, `__libc_mmap`; `syscall.Mmap`.
pub fn is_wrapper(name: &str) -> bool {
    if name.contains('.') {
        return PACKAGED.iter().any(|is_wrapper| is_wrapper(name));
    }
    let plain = name.trim_start_matches('_');
    let plain = plain.strip_prefix("GI_").unwrap_or(plain).trim_start_matches('_');
    WRAPPERS.contains(&plain.strip_prefix("libc_").unwrap_or(plain))
}

/// `base_block_alloc.isra.0` → `base_block_alloc`; `malloc@@GLIBC_2.2.5` → `malloc`.
pub fn plain_name(linkage: &str) -> &str {
    let name = linkage.split('@').next().unwrap_or(linkage);
    // Most names end here: preparing six searches takes longer than the rest of naming a frame.
    if !name.contains('.') {
        return name;
    }
    for marker in [".isra.", ".part.", ".constprop.", ".cold", ".lto_priv.", ".llvm."] {
        if let Some(at) = name.find(marker).filter(|&at| at > 0) {
            return plain_name(&name[..at]);
        }
    }
    name
}
