//! Scripts (execve(2)): what the first line of one names.

use super::bytes::ObjectError;
use super::open::open_regular;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// The kernel reads as much of a script's first line (`BINPRM_BUF_SIZE`).
const HEAD: u64 = 256;

/// The words behind `#!`: the interpreter, and what follows it. None: it is no script.
///
/// # Errors
/// When it is no regular file, or cannot be read.
pub fn interpreter_line(file: &Path) -> Result<Option<Vec<OsString>>, ObjectError> {
    let mut head = Vec::with_capacity(HEAD as usize);
    open_regular(file)?.take(HEAD).read_to_end(&mut head)?;
    let Some(line) = head.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    Ok(Some(words.map(|word| OsString::from_vec(word.to_vec())).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_script_names_its_interpreter() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("file");
        let line = |text: &str| {
            std::fs::write(&file, text).expect("written");
            interpreter_line(&file).expect("readable")
        };
        let words = |words: &[&str]| Some(words.iter().map(OsString::from).collect());
        assert_eq!(line("#! /usr/bin/env  -S python3\nexit\n"), words(&["/usr/bin/env", "-S", "python3"]));
        assert_eq!(line("#!/bin/sh"), words(&["/bin/sh"]));
        assert_eq!(line("#!\n"), words(&[]));
        assert_eq!(line("\u{7f}ELF"), None);
        assert!(interpreter_line(folder.path()).is_err(), "a folder is none");
    }
}
