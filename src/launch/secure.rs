//! vmaudit as a file with capabilities (setcap(8)): the dynamic linker takes LD_PRELOAD, LD_LIBRARY_PATH
//! and others out of the environment (glibc, sysdeps/generic/unsecvars.h). That is right for vmaudit, and
//! wrong for the command, which has no privileges and would run with other libraries than without vmaudit.

use crate::rights::is_secure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The environment that vmaudit was started with, for the programs that it starts.
pub fn environment() -> Vec<(OsString, OsString)> {
    let original = is_secure().then(|| std::fs::read("/proc/self/environ").ok()).flatten();
    original.map_or_else(|| std::env::vars_os().collect(), |bytes| parse(&bytes))
}

/// `NAME=VALUE\0…`; what has no `=` is no variable.
fn parse(bytes: &[u8]) -> Vec<(OsString, OsString)> {
    let pair = |entry: &[u8]| {
        // A name may begin with `=`, as in the standard library.
        let at = entry.iter().skip(1).position(|&b| b == b'=')? + 1;
        let part = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        Some((part(entry.get(..at)?), part(entry.get(at + 1..)?)))
    };
    bytes.split(|&b| b == 0).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_distinguished() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let parsed = parse(b"A=1\0B=\0LD_PRELOAD=/x=y.so\0junk\0\0=C=2\0");
        assert_eq!(parsed, [pair("A", "1"), pair("B", ""), pair("LD_PRELOAD", "/x=y.so"), pair("=C", "2")]);
        assert_eq!(parse(b""), []);
    }
}
