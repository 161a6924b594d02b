//! Compiles the BPF objects with clang and generates their Rust skeletons (types of the wire records
//! included) with libbpf-cargo.

use libbpf_cargo::SkeletonBuilder;
use std::env;
use std::path::PathBuf;

fn main() {
    for object in ["vmaudit", "heap", "probe"] {
        build(object);
    }
    println!("cargo:rerun-if-changed=bpf");
}

/// `bpf/NAME.bpf.c` to `NAME.skel.rs`.
fn build(name: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => panic!("vmaudit has no BPF part for {other:?} yet"),
    };
    let result = SkeletonBuilder::new()
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
}

/// `asm/types.h` lies in Debian's multiarch directory, which clang's bpf target does not search.
fn multiarch_include() -> String {
    let triple = format!("{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default());
    format!("-I/usr/include/{triple}")
}
