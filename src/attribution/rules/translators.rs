//! Programs that run another one by translating its code: they read it from its file's pages. A probe's breakpoint there is
//! translated with the rest, belongs to no process' own code, and ends the program with SIGTRAP.

/// Those of QEMU's programs that are no emulator of a processor for one program.
const QEMU_OTHERS: &[&str] = &[
    "img",
    "io",
    "nbd",
    "ga",
    "edid",
    "keymap",
    "pr-helper",
    "storage-daemon",
    "bridge-helper",
    "vmsr-helper",
];

/// Whole names of programs.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("Valgrind", &["valgrind", "valgrind.bin"]),
    ("DynamoRIO", &["drrun", "drmemory", "drltrace", "drcov", "drconfig", "drcachesim"]),
    ("Pin", &["pin", "pinbin", "sde", "sde64"]),
    ("box64", &["box64", "box86"]),
    ("FEX", &["FEX", "FEXInterpreter", "FEXLoader"]),
    ("Rosetta", &["rosetta"]),
    ("LATX", &["latx-i386", "latx-x86_64"]),
    ("Blink", &["blink"]),
];

/// How names of libraries begin that translate the code of the process that they are in.
const LIBRARIES: &[(&str, &str)] = &[
    ("DynamoRIO", "libdynamorio.so"),
    ("Pin", "libpin3dwarf.so"),
    ("Pin", "libpindwarf.so"),
    ("Frida", "frida-agent"),
    ("QBDI", "libQBDI"),
];

/// Some, for people.
pub const EXAMPLES: &str = "qemu-user, valgrind, DynamoRIO";

/// What a program of this name is, where it translates code.
pub fn of_program(name: &str) -> Option<&'static str> {
    if let Some(rest) = name.strip_prefix("qemu-") {
        let is_user = !rest.starts_with("system-") && !QEMU_OTHERS.contains(&rest);
        return is_user.then_some("QEMU's emulation of one program");
    }
    if super::valgrind::is_tool(name) {
        return Some("Valgrind");
    }
    PROGRAMS.iter().find(|(_, names)| names.contains(&name)).map(|&(what, _)| what)
}

/// What a process has in it that has a file of this name mapped, where that translates code.
pub fn of_library(name: &str) -> Option<&'static str> {
    LIBRARIES.iter().find(|(_, begin)| name.starts_with(begin)).map(|&(what, _)| what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translators_are_known_by_name() {
        for name in [
            "qemu-x86_64",
            "qemu-aarch64-static",
            "memcheck-amd64-linux",
            "none-amd64-linux",
            "valgrind.bin",
            "drrun",
            "box64",
            "FEXInterpreter",
            "rosetta",
            "pinbin",
        ] {
            assert!(of_program(name).is_some(), "{name}");
        }
        for name in ["qemu-system-x86_64", "qemu-img", "redis-server", "pinentry", "memcheck", ""] {
            assert_eq!(of_program(name), None, "{name}");
        }
        assert_eq!(of_library("libdynamorio.so"), Some("DynamoRIO"));
        assert_eq!(of_library("libc.so.6"), None);
    }
}
