//! Readable names for C++ and Rust symbols.

/// Longer names are left as they are: demangling may multiply their length.
const MAX_MANGLED: usize = 16 << 10;

/// The demangled name without parameters and return type, as perf(1) shows C++; Rust without its
/// hash. Names of other languages stay.
pub fn demangle(linkage: &str) -> String {
    if linkage.len() > MAX_MANGLED {
        return linkage.to_owned();
    }
    // GCC's parts of functions (`f.cold`, `f.isra.0`, `f.part.0`) keep their suffix.
    let (mangled, suffix) = match linkage.find('.') {
        Some(at) if linkage.starts_with("_Z") => linkage.split_at(at),
        _ => (linkage, ""),
    };
    if let Ok(rust) = rustc_demangle::try_demangle(linkage) {
        return format!("{rust:#}");
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let cpp = mangled
        .starts_with("_Z")
        .then(|| cpp_demangle::Symbol::new(mangled).ok()?.demangle_with_options(&options).ok())
        .flatten();
    match cpp {
        Some(name) => name + suffix,
        None => linkage.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::demangle;

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
}
