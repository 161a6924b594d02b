//! `render::folded`.

use vmaudit::render::folded::Folded;
use vmaudit::render::folded::frame_text;

#[test]
fn equal_stacks_add_up_and_come_sorted() {
    let mut folded = Folded::<u64>::new();
    let [main, a, b] = ["main", "a", "b"].map(|name| folded.frame(name));
    for (stack, value) in [(vec![main, b], 3), (vec![main], 1), (vec![main, a], 2), (vec![main, b], 4)] {
        folded.add(&stack, value);
    }
    assert_eq!(folded.to_text(|v| Some(v.to_string())), "main 1\nmain;a 2\nmain;b 7\n");
    assert_eq!(folded.to_text(|v| (*v > 1).then(|| v.to_string())), "main;a 2\nmain;b 7\n");
}

#[test]
fn no_name_breaks_a_line() {
    assert_eq!(frame_text("f<[u8; 8]>"), "f<[u8: 8]>");
    assert_eq!(frame_text("a\nb\t"), "a\\nb");
    assert_eq!(frame_text(" \n "), "[no name]");
    assert_eq!(frame_text("/tmp/file 12"), "/tmp/file_12");
    assert_eq!(frame_text("a 1 2.5"), "a 1_2.5");
    assert_eq!(frame_text("12"), "12");
    assert_eq!(frame_text("# comment"), "_# comment");
    assert_eq!(frame_text("f(int, char 5)"), "f(int, char 5)");
}
