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
