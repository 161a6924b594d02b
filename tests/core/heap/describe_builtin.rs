//! `heap::describe::builtin`.

use vmaudit::heap::describe::DEFAULT_ALLOCATORS;
use vmaudit::heap::describe::built_in;
use vmaudit::heap::describe::built_in_names;

#[test]
fn all_can_be_read_and_have_their_names() {
    for name in built_in_names() {
        let description = built_in(name).unwrap().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(description.name, name);
        assert!(!description.summary.is_empty(), "{name}");
    }
    assert!(DEFAULT_ALLOCATORS.iter().all(|name| built_in(name).is_some()));
    assert!(built_in("malloc").is_none());
}
