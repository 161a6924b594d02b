//! `top::cursor`.

use vmaudit::top::Cursor;

#[test]
fn it_follows_what_was_selected() {
    let mut cursor = Cursor::default();
    let rows = ["a", "b", "c", "d", "e"];
    cursor.step(2, &rows);
    cursor.settle(&rows, 2);
    assert_eq!((cursor.index(), cursor.offset()), (2, 1));
    cursor.settle(&["c", "a", "b"], 2);
    assert_eq!((cursor.index(), cursor.offset()), (0, 0), "it has moved to the top");
    cursor.settle(&["a", "b", "c"], 2);
    assert_eq!(cursor.index(), 2, "and back");
    cursor.settle(&["a", "b"], 2);
    assert_eq!(cursor.index(), 1, "it is gone: the nearest");
    cursor.settle(&["b", "a"], 2);
    assert_eq!(cursor.index(), 0, "which is followed from then on");
}

#[test]
fn at_the_top_it_stays_there_and_nothing_is_no_place() {
    let mut cursor = Cursor::default();
    cursor.step(9, &["a", "b"]);
    assert_eq!(cursor.index(), 1);
    cursor.step(-9, &["a", "b"]);
    cursor.settle(&["b", "a"], 5);
    assert_eq!(cursor.index(), 0);
    cursor.settle(&[], 0);
    assert_eq!((cursor.index(), cursor.offset()), (0, 0));
    cursor.step(1, &[]);
    assert_eq!(cursor.index(), 0);
}
