//! `model::path`.

use vmaudit::model::path::base_name;
use vmaudit::model::path::base_name_bytes;

#[test]
fn the_last_part_without_the_mark() {
    for (path, name) in [("/usr/bin/a b (deleted)", "a b"), ("a", "a"), ("/x/", ""), ("", ""), ("/é", "é")]
    {
        assert_eq!(base_name(path), name);
        assert_eq!(base_name_bytes(path.as_bytes()), name.as_bytes());
    }
    assert_eq!(base_name_bytes(b"/\xff/\xfe"), b"\xfe");
}
