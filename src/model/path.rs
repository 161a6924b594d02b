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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_without_the_mark() {
        for (path, name) in
            [("/usr/bin/a b (deleted)", "a b"), ("a", "a"), ("/x/", ""), ("", ""), ("/é", "é")]
        {
            assert_eq!(base_name(path), name);
            assert_eq!(base_name_bytes(path.as_bytes()), name.as_bytes());
        }
        assert_eq!(base_name_bytes(b"/\xff/\xfe"), b"\xfe");
    }
}
