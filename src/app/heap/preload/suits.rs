//! Which programs a preloaded library can get into, before they are started.

use crate::app::heap::resolve::resolve;
use crate::capture::preload::layout::FUNCTIONS;
use crate::heap::Description;
use crate::heap::describe::DEFAULT_ALLOCATORS;
use crate::launch::program_file;
use crate::objects::Object;
use crate::objects::open::open_regular;
use crate::objects::script::interpreter_line;
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts whose interpreter is a script …
const MOST_INTERPRETERS: usize = 4;

/// Why other functions are requested than those that the library interposes.
pub fn other_functions(descriptions: &[Description]) -> Option<String> {
    let other = descriptions.iter().find(|each| !DEFAULT_ALLOCATORS.contains(&each.name.as_str()))?;
    Some(format!("the functions of {} are not those that a preloaded library can stand before", other.name))
}

/// Why the library does not get into a command, or sees nothing there.
pub fn unsuited(command: &[OsString], descriptions: &[Description]) -> Option<String> {
    let mut file = program_file(command)?;
    for _ in 0..MOST_INTERPRETERS {
        match interpreter(&file) {
            Some(other) => file = other,
            None => break,
        }
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Some(match unsuited_file(&file, &name, descriptions)? {
        Unsuited::Privileged => format!("{name} gets other rights when it starts: nothing can be preloaded"),
        Unsuited::Foreign => format!("{name} is no 64-bit program for this processor"),
        Unsuited::Static => format!("{name} is statically linked: nothing can be preloaded"),
        Unsuited::OwnAllocator(symbol) => format!(
            "{name} has an allocator of its own in it ({symbol}), which a preloaded library cannot stand before"
        ),
    })
}

enum Unsuited {
    Privileged,
    Foreign,
    Static,
    OwnAllocator(String),
}

fn unsuited_file(file: &Path, name: &str, descriptions: &[Description]) -> Option<Unsuited> {
    let meta = std::fs::metadata(file).ok()?;
    let own = nix::unistd::Uid::effective();
    let changes = meta.permissions().mode() & 0o4000 != 0 && meta.uid() != own.as_raw()
        || meta.permissions().mode() & 0o2000 != 0 && !own.is_root();
    if changes {
        return Some(Unsuited::Privileged);
    }
    let Ok(object) = Object::from_file(open_regular(file).ok()?) else { return Some(Unsuited::Foreign) };
    if !object.layout().is_dynamic_program {
        return Some(Unsuited::Static);
    }
    let own = resolve(&object, name, descriptions).found;
    own.first().map(|function| Unsuited::OwnAllocator(function.symbol.clone()))
}

/// An allocator under names that the library does not interpose: one of its functions. Where there is one
/// that it does interpose, that is what programs call.
pub fn other_names(
    object: &Object,
    (name, is_program): (&str, bool),
    descriptions: &[Description],
) -> Option<String> {
    let found = resolve(object, name, descriptions).found;
    // What the program has itself comes before whatever is preloaded.
    if is_program {
        return found.first().map(|function| function.symbol.clone());
    }
    let is_counted = |symbol: &str| symbol == "free" || FUNCTIONS.contains(&symbol);
    match found.iter().any(|function| is_counted(&function.symbol)) {
        true => None,
        false => found.first().map(|function| function.symbol.clone()),
    }
}

/// Of a script.
fn interpreter(file: &Path) -> Option<PathBuf> {
    let words = interpreter_line(file).ok()??;
    Some(PathBuf::from(words.into_iter().next().unwrap_or_default()))
}
