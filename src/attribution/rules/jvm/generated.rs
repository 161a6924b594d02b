//! How a JVM names the code that it makes: `TYPE CLASS.METHOD(TYPES)` (Method::external_name,
//! src/hotspot/share/oops/method.cpp; CodeCache::write_perf_map, JDK 17 and later).

use crate::model::stack::GeneratedFunction;

/// What it makes for itself (names of CodeBlobs, src/hotspot/share/code/codeBlob.cpp).
pub(super) const OWN: &[&str] = &[
    "Interpreter",
    "StubRoutines (",
    "RuntimeStub - ",
    "I2C/C2I adapters",
    "vtable stub",
    "itable stub",
    "DeoptimizationBlob",
    "ExceptionBlob",
    "SafepointBlob",
    "UncommonTrapBlob",
    "MethodHandle adapters",
    "Runtime1 ",
];

/// Packages of classes that come with it.
pub(super) const OWN_CLASSES: &[&str] = &["java.", "javax.", "jdk.", "sun.", "com.sun."];

/// Without the types.
pub(super) fn method(entry: &str) -> Option<GeneratedFunction> {
    let (head, types) = entry.split_once('(')?;
    let (_, name) = head.rsplit_once(' ')?;
    let is_method = types.ends_with(')') && name.contains('.') && !name.starts_with('.');
    is_method.then(|| GeneratedFunction { name: name.to_owned(), place: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_named_without_their_types() {
        for (entry, name) in [
            ("java.nio.ByteBuffer Grow.makeBlock(int)", Some("Grow.makeBlock")),
            ("void a.B$C.<init>(a.B, int[])", Some("a.B$C.<init>")),
            ("StubRoutines (1)", None),
            ("Interpreter", None),
            ("RuntimeStub - _new_instance_Java", None),
        ] {
            assert_eq!(method(entry).map(|found| found.name).as_deref(), name, "{entry}");
        }
    }
}
