//! Compiles the BPF objects with clang and generates their Rust skeletons (types of the wire records
//! included) with libbpf-cargo.

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::btf::{Btf, BtfKind, BtfType, TypeId};
use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

fn main() {
    for object in ["vmaudit", "heap", "probe"] {
        build(object);
    }
    println!("cargo:rerun-if-changed=bpf");
}

/// `bpf/NAME.bpf.c` to `NAME.skel.rs`, and the names of the types it reads to `NAME.types.rs`.
fn build(name: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => panic!("vmaudit has no BPF part for {other:?} yet"),
    };
    let object = out.join(format!("{name}.bpf.o"));
    let result = SkeletonBuilder::new()
        .obj(&object)
        .source(format!("bpf/{name}.bpf.c"))
        .clang_args([
            format!("-D__TARGET_ARCH_{arch}"),
            "-Ibpf".into(),
            "-Wall".into(),
            "-Werror".into(),
            multiarch_include(),
        ])
        .build_and_generate(out.join(format!("{name}.skel.rs")));
    if let Err(error) = result {
        panic!("building bpf/{name}.bpf.c failed (clang is needed: apt-get install clang): {error:#}");
    }
    let names = format!("{:?}", type_names(&object));
    std::fs::write(out.join(format!("{name}.types.rs")), names.replace('{', "&[").replace('}', "]"))
        .expect("writing the names of the types");
}

/// Of the types in a BPF object that the kernel may have, too: without the flavour (`___` and what follows) that tells
/// one kernel version's from another's.
fn type_names(object: &Path) -> BTreeSet<String> {
    let btf =
        Btf::from_path(object).unwrap_or_else(|error| panic!("the types of {}: {error}", object.display()));
    (1..)
        .map_while(|number| btf.type_by_id::<BtfType<'_>>(TypeId::from(number)))
        .filter(|of| matches!(of.kind(), BtfKind::Struct | BtfKind::Union | BtfKind::Enum | BtfKind::Enum64))
        .filter_map(|of| of.name()?.to_str()?.split("___").next().map(str::to_owned))
        .filter(|name| !name.is_empty())
        .collect()
}

/// `asm/types.h` lies in Debian's multiarch directory, which clang's bpf target does not search.
fn multiarch_include() -> String {
    let triple = format!("{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default());
    format!("-I/usr/include/{triple}")
}
