//! `symbolize::demangle`.

use vmaudit::symbolize::demangle;

#[test]
fn names() {
    assert_eq!(demangle("malloc"), "malloc");
    assert_eq!(demangle("_ZN7CodeMap4growEm"), "CodeMap::grow");
    assert_eq!(demangle("_ZN7CodeMap4growEm.cold"), "CodeMap::grow.cold");
    assert_eq!(
        demangle("_ZNSt6vectorIiSaIiEE9push_backEOi"),
        "std::vector<int, std::allocator<int> >::push_back"
    );
    assert_eq!(demangle("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE"), "core::fmt::Formatter::pad");
    assert_eq!(demangle("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
    assert_eq!(demangle("_Z"), "_Z");
    assert_eq!(demangle("_rjem_je_base_new"), "_rjem_je_base_new");
}
