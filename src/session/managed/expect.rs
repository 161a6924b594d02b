//! Files with an interpreter that a command will probably execute: known before it runs, its first call has its
//! frames. All others are known a moment after they were mapped.

use super::Managed;
use crate::attribution::rules::interpreters;
use crate::model::stack::Interpreter;
use crate::objects::open::open_regular;
use crate::objects::script::interpreter_line;
use crate::objects::{FileKey, Object};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Scripts whose interpreters are scripts, at most (`BINPRM_MAX_RECURSION`, fs/exec.c).
const MOST_SCRIPTS: usize = 5;
/// The BPF map has space for as many and their libraries.
const MOST_PROGRAMS: usize = 32;
const LIBRARIES: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

/// What `program` is, or is interpreted by; what PATH and managers of versions lead to under an interpreter's names;
/// their libraries.
pub fn expect(managed: &mut Managed, program: Option<PathBuf>) {
    if managed.backend.is_none() {
        return;
    }
    let interpreters: Vec<Interpreter> = interpreters().collect();
    let libraries: Vec<&str> =
        interpreters.iter().flat_map(|interpreter| interpreter.libraries).copied().collect();
    // What is certain comes first: there may be more than the map has space for.
    let mut programs: Vec<PathBuf> = program.and_then(interpreter_of).into_iter().collect();
    for interpreter in &interpreters {
        let found = interpreter.programs.iter().flat_map(|name| on_path(OsStr::new(name)));
        programs.extend(found.filter_map(interpreter_of));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    for interpreter in &interpreters {
        let mut visited = BTreeSet::new();
        let next_to_path = path_folders().into_iter().map(|folder| (folder, interpreter.beside_path));
        let at_home = home.iter().map(|home| (home.clone(), interpreter.at_home));
        for (base, below) in next_to_path.chain(at_home) {
            let folders = below.iter().flat_map(|below| folders_of(&base, below));
            // Several folders of PATH, and the home, lead to the same ones.
            let folders = folders.filter_map(|folder| std::fs::canonicalize(folder).ok());
            let new = folders.filter(|folder| visited.insert(folder.clone()));
            let found = new.flat_map(|folder| named(&folder, interpreter.programs));
            programs.extend(found.filter_map(interpreter_of));
        }
    }
    let mut seen = BTreeSet::new();
    programs.retain(|program| seen.insert(program.clone()));
    let mut folders: BTreeSet<PathBuf> = LIBRARIES.iter().map(PathBuf::from).collect();
    let is_named = |name: &str| interpreters.iter().flat_map(|i| i.programs).any(|own| name.starts_with(own));
    for program in programs.iter().take(MOST_PROGRAMS) {
        add(managed, program);
        if program.file_name().and_then(OsStr::to_str).is_some_and(is_named)
            && let Some(prefix) = program.parent().and_then(Path::parent)
        {
            folders.insert(prefix.join("lib"));
        }
    }
    for folder in folders {
        let files = named(&folder, &libraries).into_iter();
        let files = files.filter(|file| file.to_string_lossy().contains(".so"));
        files.for_each(|file| add(managed, &file));
    }
}

/// The files in a folder whose names begin so.
fn named(folder: &Path, with: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let begins = |name: &str| with.iter().any(|own| name.starts_with(own));
    entries.filter(|entry| begins(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
}

/// The folders that a pattern with at most one `*` means, seen from `base`.
fn folders_of(base: &Path, below: &str) -> Vec<PathBuf> {
    let Some((before, after)) = below.split_once("*/") else { return vec![base.join(below)] };
    let entries = std::fs::read_dir(base.join(before)).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join(after)).collect()
}

fn path_folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect()
}

fn on_path(name: &OsStr) -> Vec<PathBuf> {
    let found = path_folders().into_iter().map(|folder| folder.join(name));
    found.filter(|path| path.is_file()).collect()
}

/// The program that executes a file: itself, or what its first line names.
fn interpreter_of(mut file: PathBuf) -> Option<PathBuf> {
    for _ in 0..=MOST_SCRIPTS {
        file = std::fs::canonicalize(file).ok()?;
        let Some(words) = interpreter_line(&file).ok()? else { return Some(file) };
        let mut words = words.into_iter();
        file = PathBuf::from(words.next()?);
        if file.file_name() == Some(OsStr::new("env")) {
            let name = words.find(|word| !word.as_bytes().starts_with(b"-"))?;
            file = on_path(&name).into_iter().next()?;
        }
    }
    None
}

fn add(managed: &mut Managed, path: &Path) {
    let Ok(file) = open_regular(path) else { return };
    let Ok(found) = file.metadata() else { return };
    if let Ok(object) = Object::from_file(file) {
        managed.expect(FileKey::from(&found), &object);
    }
}
