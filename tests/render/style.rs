//! `render::style`.

use vmaudit::model::clean;
use vmaudit::render::style::shell_word;
use vmaudit::render::style::signed_size;
use vmaudit::render::style::truncated;
use vmaudit::render::style::wrapped;

#[test]
fn names_cannot_drive_the_terminal() {
    assert_eq!(clean("a\x1b[31mb\nc"), "a\\u{1b}[31mb\\nc");
    assert_eq!(clean("x\u{202e}y"), "x\\u{202e}y");
    assert_eq!(clean("ünï 漢"), "ünï 漢");
    assert_eq!(clean("\u{9b}31m"), "\\u{9b}31m");
}

#[test]
fn command_lines_can_be_typed_again() {
    assert_eq!(
        ["", "a=b,c/d", "two words", "it's"].map(shell_word),
        ["''", "a=b,c/d", "'two words'", "'it'\\''s'"]
    );
    assert_eq!(shell_word("a\nb"), "'a\\nb'");
}

#[test]
fn changes_have_their_sign() {
    assert_eq!([0, 4096, -(1 << 20)].map(signed_size), ["0", "+4 KiB", "-1.0 MiB"]);
}

#[test]
fn long_text_is_cut_and_wrapped() {
    assert_eq!(truncated("abcdef", 4), "abc…");
    assert_eq!(truncated("abcd", 4), "abcd");
    assert_eq!(wrapped("aa bb cc dddddddd e", 5), ["aa bb", "cc", "dddddddd", "e"]);
}
