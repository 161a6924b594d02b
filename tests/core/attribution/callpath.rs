//! `attribution::callpath`.

use vmaudit::attribution::code::plain_name;

#[test]
fn compiler_suffixes_do_not_hide_a_name() {
    assert_eq!(plain_name("base_block_alloc.isra.0"), "base_block_alloc");
    assert_eq!(plain_name("arena_get2.part.0.cold"), "arena_get2");
    assert_eq!(plain_name("malloc@@GLIBC_2.2.5"), "malloc");
    assert_eq!(plain_name("runtime.(*pageAlloc).sysInit"), "runtime.(*pageAlloc).sysInit");
}
