//! Rules of the user's own: which folders they are in, and reading them, with the user's own rights
//! (src/rights: what vmaudit's file lends is effective elsewhere only).

use super::error::AppError;
use crate::attribution::{DataRules, TableRule, each_once, parse_rules};
use crate::sys::untrusted_open;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Of the whole machine.
const SYSTEM: &str = "/etc/vmaudit/rules";
/// The longest file that is read; the built-in ones have some KiB.
const MAX_FILE: u64 = 1 << 20;
/// Files of a folder.
const MAX_FILES: usize = 256;

static RULES: OnceLock<DataRules> = OnceLock::new();

/// The rules that this run of vmaudit goes by.
pub fn rules() -> &'static DataRules {
    RULES.get().unwrap_or_else(|| DataRules::built_in())
}

/// Reads the user's own rules: those of `named`, of his configuration, of the machine.
///
/// # Errors
/// When one of them cannot be read, or is wrong: before anything is started.
pub fn read(named: Option<&Path>) -> Result<(), AppError> {
    let mut own: Vec<TableRule> = Vec::new();
    for (folder, is_named) in named.map(|path| (path.to_owned(), true)).into_iter().chain(default_folders()) {
        let mut rules = read_folder(&folder, is_named)?;
        each_once(&rules).map_err(|error| AppError::Usage(format!("rules: {error}")))?;
        rules.retain(|rule| own.iter().all(|before| before.id != rule.id));
        own.extend(rules);
    }
    if !own.is_empty() {
        RULES.get_or_init(|| DataRules::with(own));
    }
    Ok(())
}

/// Folders that are examined without being named; they need not be there.
fn default_folders() -> impl Iterator<Item = (PathBuf, bool)> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    let own = config.map(|config| config.join("vmaudit/rules"));
    own.into_iter().chain([PathBuf::from(SYSTEM)]).map(|path| (path, false))
}

fn read_folder(folder: &Path, is_named: bool) -> Result<Vec<TableRule>, AppError> {
    let failed = |error: io::Error| {
        AppError::Usage(format!("rules: {}: the folder cannot be read: {error}", folder.display()))
    };
    let entries = match fs::read_dir(folder) {
        Err(error) if !is_named && is_absent(&error) => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let paths: Result<Vec<PathBuf>, io::Error> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(failed)?;
    paths.retain(|path| path.extension() == Some(OsStr::new("toml")) && !is_hidden(path));
    paths.sort();
    if paths.len() > MAX_FILES {
        let (folder, many) = (folder.display(), paths.len());
        return Err(AppError::Usage(format!(
            "rules: {folder}: {many} files, of which {MAX_FILES} are allowed"
        )));
    }
    let mut rules = Vec::new();
    for path in paths {
        let text = read_file(&path).map_err(|error| {
            AppError::Usage(format!("rules: {}: it cannot be read: {error}", path.display()))
        })?;
        let parsed = parse_rules(&text, &path.to_string_lossy());
        rules.extend(parsed.map_err(|error| AppError::Usage(format!("rules: {error}")))?);
    }
    Ok(rules)
}

/// The folder was not given by the user: one that he may not enter is ignored.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
    )
}

/// What editors leave behind.
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn read_file(path: &Path) -> io::Result<String> {
    let text = untrusted_open::read(path, MAX_FILE)?;
    String::from_utf8(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no UTF-8"))
}
