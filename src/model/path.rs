//! Paths as maps and /proc have them: a file that was deleted is marked at its end.

const DELETED: &str = " (deleted)";

/// The last part of a path, without the mark.
pub fn base_name(path: &str) -> &str {
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// The same of a path that need not be UTF-8.
pub fn base_name_bytes(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(DELETED.as_bytes()).unwrap_or(path);
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// The same as text.
pub fn base_name_lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(base_name_bytes(path)).into_owned()
}
