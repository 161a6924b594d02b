//! What will run when a file is executed.

use super::hold::base_name;
use crate::attribution::translators;
use crate::objects::bytes::ReadAt;
use crate::objects::elf;
use crate::objects::open::open_regular;
use crate::objects::script::interpreter_line;
use std::path::Path;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// The processor's own code, as it is in the file.
    Native,
    /// A program that translates code, and which.
    Translator(&'static str),
    /// What the kernel has an interpreter for (binfmt_misc), or what may not be read.
    Unknown,
    /// There is no such file: nothing will be executed.
    Missing,
}

/// Scripts whose interpreters are scripts, at most (fs/exec.c, exec_binprm).
const DEPTH: usize = 5;

/// The file as the task finds it whose root is `root`.
pub fn of_file(path: &Path, root: &Path) -> Program {
    let mut path = path.to_owned();
    for _ in 0..DEPTH {
        let Ok(real) = path.canonicalize() else { return Program::Missing };
        if let Some(what) = [&path, &real].into_iter().find_map(|path| translator(&base_name(path))) {
            return Program::Translator(what);
        }
        if is_own(&path) {
            return Program::Native;
        }
        let words = interpreter_line(&path).ok().flatten().unwrap_or_default();
        let Some(interpreter) = words.first().map(Path::new) else { return Program::Unknown };
        path = root.join(interpreter.strip_prefix("/").unwrap_or(interpreter));
    }
    Program::Unknown
}

/// What a program, or a library that is executed as one, translates.
pub fn translator(name: &str) -> Option<&'static str> {
    translators::of_program(name).or_else(|| translators::of_library(name))
}

/// A program of this processor.
fn is_own(path: &Path) -> bool {
    let mut head = [0; elf::EHDR];
    let got = open_regular(path).and_then(|file| Ok(file.read_at(0, &mut head)?));
    got.is_ok_and(|got| head.get(..got).is_some_and(elf::runs_here))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_executes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            path
        };
        let own = std::fs::read("/proc/self/exe").expect("this program");
        let kind = |path: &Path| of_file(path, Path::new("/"));
        assert_eq!(kind(&write("own", &own[..4096])), Program::Native);
        let mut other = own[..4096].to_vec();
        // e_machine: a processor that this is not
        other[18] ^= 0x55;
        assert_eq!(kind(&write("other", &other)), Program::Unknown);
        assert_eq!(kind(&write("data", b"MZ")), Program::Unknown);
        assert_eq!(kind(&folder.path().join("missing")), Program::Missing);
        let tool = write("qemu-aarch64-static", &own[..4096]);
        assert!(matches!(kind(&tool), Program::Translator(_)));
        let script = |to: &Path| format!("#! {} -x\n", to.display());
        assert_eq!(kind(&write("plain", script(Path::new("/proc/self/exe")).as_bytes())), Program::Native);
        assert!(matches!(kind(&write("hidden", script(&tool).as_bytes())), Program::Translator(_)));
        let itself = folder.path().join("itself");
        assert_eq!(kind(&write("itself", script(&itself).as_bytes())), Program::Unknown);
        std::os::unix::fs::symlink(&tool, folder.path().join("link")).expect("a link");
        assert!(matches!(kind(&folder.path().join("link")), Program::Translator(_)));
    }
}
