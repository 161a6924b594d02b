//! Files with code, found by what the user calls them: a path, a library's name, a process.

use super::error::{AppError, CodeFileError};
use crate::model::{AddrRange, FileRef, Pid};
use crate::objects::library::{self, FoundLibrary};
use crate::objects::open::open_regular;
use crate::objects::{
    DebugFiles, FileCache, FileKey, FunctionTable, Object, ObjectError, OpenRequest, debug_file, elf,
};
use crate::procfs::parse_maps;
use crate::session::snapshots::living::Living;
use crate::session::tracer::remedy::may_not_be_read;
use regex::Regex;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file with code.
pub struct CodeFile {
    pub path: PathBuf,
    pub object: Arc<Object>,
    /// Its separate debug file, where one is installed.
    pub debug: Option<Object>,
}

impl CodeFile {
    fn new(path: PathBuf, object: Arc<Object>) -> CodeFile {
        let dirs: Vec<PathBuf> = debug_file::DEBUG_DIRS.iter().map(PathBuf::from).collect();
        let debug = debug_file::find(&object, path.as_os_str().as_bytes(), &dirs);
        CodeFile { path, object, debug }
    }

    pub fn functions(&self) -> FunctionTable {
        FunctionTable::read(&self.object, DebugFiles { file: self.debug.as_ref() })
    }
}

/// The file at a path.
///
/// # Errors
/// When it is no file with code for this machine, in words for its owner.
pub fn at(path: &Path) -> Result<CodeFile, AppError> {
    let open = |path: &Path| Object::from_file(open_regular(path)?);
    let object = open(path).map_err(|source| match why(path, &source) {
        Some(what) => CodeFileError::Unusable { path: path.to_owned(), what },
        None => CodeFileError::Open { path: path.to_owned(), source },
    })?;
    if let Some(what) = object.read(0, 64).ok().and_then(|head| elf::no_program(&head)) {
        return Err(CodeFileError::Unusable { path: path.to_owned(), what }.into());
    }
    // Debuggers resolve the path before they search for `.debug` next to it.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    Ok(CodeFile::new(path, Arc::new(object)))
}

/// What is wrong with a file, where more is known than the error says.
fn why(path: &Path, error: &ObjectError) -> Option<String> {
    let file = open_regular(path).ok()?;
    let len = file.metadata().ok()?.len();
    let mut head = [0; 64];
    let got = crate::objects::bytes::ReadAt::read_at(&file, 0, &mut head).ok()?;
    match error {
        ObjectError::NotElf | ObjectError::NoMagic => Some(elf::foreign(head.get(..got)?)),
        ObjectError::Io(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            if head.starts_with(b"\x7fELF") {
                Some(format!("a truncated ELF file: its {len} bytes end before its headers do"))
            } else {
                Some(elf::foreign(head.get(..got)?))
            }
        }
        _ => None,
    }
}

/// A library or program by name, as ld.so and the shell find it; a path where there is a slash.
///
/// # Errors
/// When there is none, with what is called alike.
pub fn named(name: &OsStr) -> Result<CodeFile, AppError> {
    if name.as_bytes().contains(&b'/') {
        return at(Path::new(name));
    }
    match library::find(name) {
        FoundLibrary::At(path) => at(&path),
        FoundLibrary::Unknown { similar } => {
            let similar = match similar.as_slice() {
                [] => String::new(),
                some => format!("; there is {}", some.join(", ")),
            };
            Err(CodeFileError::NoLibrary { name: name.to_string_lossy().into_owned(), similar }.into())
        }
    }
}

/// The files that a process has mapped as code, in the order of their addresses; with `lib` the one
/// of that name. The second list: files that could not be opened, and why.
///
/// # Errors
/// When the process is gone, may not be read, or has no such file.
pub fn of_process(pid: Pid, lib: Option<&OsString>) -> Result<(Vec<CodeFile>, Vec<String>), AppError> {
    let living = Living::open(pid).map_err(crate::session::snapshots::SnapshotError::from)?;
    let pid = living.pid;
    let maps = std::fs::read(format!("/proc/{pid}/maps")).map_err(|source| {
        let denied = source.kind() == io::ErrorKind::PermissionDenied;
        let remedy = if denied { format!("\n{}", may_not_be_read()) } else { String::new() };
        CodeFileError::Maps { pid, source, remedy }
    });
    let maps = parse_maps(&maps?);
    // What a link of that name leads to may be called quite differently (`libc-2.31.so`).
    let linked = lib.and_then(|lib| match library::find(lib) {
        FoundLibrary::At(path) => path.canonicalize().ok(),
        FoundLibrary::Unknown { .. } => None,
    });
    let mut cache = FileCache::default();
    let mut seen = HashSet::new();
    let (mut files, mut failures, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for mapping in maps.mappings.iter().filter(|mapping| mapping.prot.exec) {
        let Some(file) = mapping.file_ref() else { continue };
        if !seen.insert(FileKey::from(&file)) {
            continue;
        }
        let path = PathBuf::from(OsStr::from_bytes(&file.path));
        if lib.is_some_and(|lib| !is_called(&path, lib) && linked.as_ref() != Some(&path)) {
            names.push(short(&path));
            continue;
        }
        match open(&mut cache, &file, mapping.range, pid) {
            Ok(object) => files.push(CodeFile::new(path, object)),
            Err(error) => failures.push(format!("{}: {error}", path.display())),
        }
    }
    match (lib, files.is_empty() && failures.is_empty()) {
        (Some(lib), true) => {
            let name = lib.to_string_lossy().into_owned();
            Err(CodeFileError::NotMapped { pid, name, mapped: names.join(", ") }.into())
        }
        (None, true) => Err(CodeFileError::NoCode(pid).into()),
        _ => Ok((files, failures)),
    }
}

fn open(
    cache: &mut FileCache,
    file: &FileRef,
    range: AddrRange,
    pid: Pid,
) -> Result<Arc<Object>, Arc<ObjectError>> {
    cache.open(&OpenRequest { file, range, pid: Some(pid), build_id: None })
}

fn short(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// By path, or by file name with or without the last parts of its version.
fn is_called(path: &Path, lib: &OsString) -> bool {
    if lib.as_bytes().contains(&b'/') {
        let same = || Some(path.canonicalize().ok()? == Path::new(lib).canonicalize().ok()?);
        return path == Path::new(lib) || same().unwrap_or(false);
    }
    let name = path.file_name().map(OsStr::as_bytes).unwrap_or_default();
    // `libtcmalloc.so.4` is mapped as what it links to, `libtcmalloc.so.4.5.10`.
    let version =
        |rest: &[u8]| rest.starts_with(b".") && rest.iter().all(|b| b.is_ascii_digit() || *b == b'.');
    name.strip_prefix(lib.as_bytes()).is_some_and(|rest| rest.is_empty() || version(rest))
}

/// A regular expression of the command line.
pub fn pattern(text: &str) -> Result<Regex, AppError> {
    Regex::new(text).map_err(|error| AppError::Usage(format!("--match {text}: {error}")))
}

/// A pattern means the name as it is in the table, or as it is shown.
pub fn matches(pattern: &Regex, name: &str, demangled: &str) -> bool {
    pattern.is_match(name) || demangled != name && pattern.is_match(demangled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sonames_are_found_behind_their_links() {
        let is = |path: &str, lib: &str| is_called(Path::new(path), &OsString::from(lib));
        assert!(is("/usr/lib/libtcmalloc.so.4.5.10", "libtcmalloc.so.4"));
        assert!(is("/usr/lib/libc.so.6", "libc.so.6"));
        assert!(is("/usr/bin/redis-server", "redis-server"));
        assert!(is("/usr/lib/libc.so.6", "libc.so"));
        assert!(!is("/usr/lib/libtcmalloc.so.45", "libtcmalloc.so.4"));
        assert!(!is("/usr/lib/libtcmalloc_minimal.so.4", "libtcmalloc.so.4"));
        assert!(!is("/usr/lib/libc.so.6", "libc"));
    }
}
