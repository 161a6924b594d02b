//! Files with an interpreter that a command will probably execute: known before it runs, its first call has its
//! frames. All others are known a moment after they were mapped.

use super::Managed;
use crate::objects::open::open_regular;
use crate::objects::{FileKey, Object};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Scripts whose interpreters are scripts, at most (`BINPRM_MAX_RECURSION`, fs/exec.c).
const MOST_SCRIPTS: usize = 5;
/// The kernel reads as much of a script's first line (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
const LIBRARIES: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

/// What `program` is, or is interpreted by; what PATH leads to under an interpreter's names; their libraries.
pub fn expect(managed: &mut Managed, program: Option<PathBuf>) {
    let interpreters = managed.interpreters().to_vec();
    let names: Vec<&str> =
        interpreters.iter().flat_map(|interpreter| interpreter.programs).copied().collect();
    let libraries: Vec<&str> =
        interpreters.iter().flat_map(|interpreter| interpreter.libraries).copied().collect();
    let mut folders: Vec<PathBuf> = LIBRARIES.iter().map(PathBuf::from).collect();
    let on_path = names.iter().flat_map(|name| on_path(OsStr::new(name)));
    for program in program.into_iter().chain(on_path) {
        let Some(program) = interpreter_of(program) else { continue };
        add(managed, &program);
        let is_named = |name: &str| names.iter().any(|own| name.starts_with(own));
        if program.file_name().and_then(OsStr::to_str).is_some_and(is_named)
            && let Some(prefix) = program.parent().and_then(Path::parent)
        {
            folders.push(prefix.join("lib"));
        }
    }
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if libraries.iter().any(|own| name.starts_with(own)) && name.contains(".so") {
                add(managed, &entry.path());
            }
        }
    }
}

fn on_path(name: &OsStr) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(name));
    found.filter(|path| path.is_file()).collect()
}

/// The program that executes a file: itself, or what its first line names.
fn interpreter_of(mut file: PathBuf) -> Option<PathBuf> {
    for _ in 0..=MOST_SCRIPTS {
        file = std::fs::canonicalize(file).ok()?;
        let mut head = Vec::with_capacity(HEAD);
        open_regular(&file).ok()?.take(HEAD as u64).read_to_end(&mut head).ok()?;
        let Some(line) = head.strip_prefix(b"#!") else { return Some(file) };
        let line = line.split(|&byte| byte == b'\n').next()?;
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        file = PathBuf::from(OsStr::from_bytes(words.next()?));
        if file.file_name() == Some(OsStr::new("env")) {
            let name = words.find(|word| !word.starts_with(b"-"))?;
            file = on_path(OsStr::from_bytes(name)).into_iter().next()?;
        }
    }
    None
}

fn add(managed: &mut Managed, path: &Path) {
    let Ok(file) = open_regular(path) else { return };
    let Some(key) = key_of(&file) else { return };
    if let Ok(object) = Object::from_file(file) {
        managed.expect(key, &object);
    }
}

fn key_of(file: &File) -> Option<FileKey> {
    let found = file.metadata().ok()?;
    let (major, minor) = (libc::major(found.dev()), libc::minor(found.dev()));
    Some(FileKey { major, minor, inode: found.ino() })
}
