//! Compiles the BPF objects with clang and generates their Rust skeletons (types of the wire records
//! included) with libbpf-cargo; and the library that is preloaded.

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::btf::{Btf, BtfKind, BtfType, TypeId};
use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The parser of rules that are data, the same as vmaudit's own.
#[allow(dead_code, unused_imports)]
#[path = "src/attribution/rules/data/format/mod.rs"]
mod format;

/// What it needs of the model, under the same path.
#[allow(dead_code)]
#[path = "src/model"]
mod model {
    mod clean;
    pub mod toml_file;
    pub use clean::is_hidden;
}

/// The HTML pages, but for what they show.
#[path = "src/render/html/assemble.rs"]
mod assemble;

fn main() {
    check_rules();
    let types = ["vmaudit", "heap", "probe"].into_iter().flat_map(build).collect::<BTreeSet<String>>();
    let names = format!("{types:?}").replace('{', "&[").replace('}', "]");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(out.join("kernel_types.rs"), names).expect("writing the names of the types");
    println!("cargo:rerun-if-changed=bpf");
    assemble_pages(&out);
    build_library();
    println!("cargo:rerun-if-changed=preload");
}

fn assemble_pages(out: &Path) {
    let folder = Path::new("src/render/html");
    println!("cargo:rerun-if-changed={}", folder.display());
    let text_of = |name: &str| {
        std::fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("reading {name}: {e}"))
    };
    for name in ["report.html", "heap.html", "heap-diff.html"] {
        let page = assemble::page(name, text_of).unwrap_or_else(|e| panic!("{name}: {e}"));
        std::fs::write(out.join(name), page).expect("writing a page");
    }
}

/// `preload/lib.rs` to `libvmaudit-heap.so`, which is embedded; empty for an architecture that it has no assembly
/// for. Not a crate of its own: cargo would build it with std, and for the tests with another panic handler.
fn build_library() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("libvmaudit-heap.so");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        std::fs::write(out, []).expect("writing the place of the library");
        return;
    }
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    rustc.args(["--crate-name", "vmaudit_heap", "--crate-type", "cdylib", "--edition", "2024"]);
    rustc.args(["--target", &target, "-D", "warnings", "-o"]).arg(out).arg("preload/lib.rs");
    let options = [
        "opt-level=3",
        "panic=abort",
        "codegen-units=1",
        "lto",
        "relocation-model=pic",
        "strip=symbols",
        "force-unwind-tables=no",
        // No libc of its own: it takes what the program has, whichever that is.
        "link-arg=-nostdlib",
        "link-arg=-nostartfiles",
    ];
    for option in options {
        rustc.args(["-C", option]);
    }
    if target.ends_with("-musl") {
        rustc.args(["-C", "target-feature=-crt-static"]);
    }
    let status = rustc.status().expect("rustc starts");
    assert!(status.success(), "building preload/lib.rs failed");
}

/// The built-in rules: read once here, so that a wrong one ends the build; listed with their texts.
fn check_rules() {
    const FOLDER: &str = "src/attribution/rules/data/builtin";
    println!("cargo:rerun-if-changed={FOLDER}");
    let entries = std::fs::read_dir(FOLDER).expect("the folder of built-in rules");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file of rules").path()).collect();
    files.sort();
    let mut ids = BTreeSet::new();
    let mut list = String::new();
    for path in files {
        let path = path.to_str().expect("a plain name");
        let text = std::fs::read_to_string(path).expect("readable rules");
        match format::parse(&text, path) {
            Ok(rules) => rules.into_iter().for_each(|rule| {
                assert!(ids.insert(rule.id.clone()), "{path}:{}: {} is a rule already", rule.line, rule.id);
            }),
            Err(error) => panic!("{error}"),
        }
        let name = path.rsplit('/').next().expect("a name");
        list +=
            &format!("    ({name:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/{path}\"))),\n");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let list = format!("pub const FILES: &[(&str, &str)] = &[\n{list}];\n");
    std::fs::write(out.join("built_in_rules.rs"), list).expect("writing the list of built-in rules");
}

/// `bpf/NAME.bpf.c` to `NAME.skel.rs`; the names of the types that it reads.
fn build(name: &str) -> BTreeSet<String> {
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
    type_names(&object)
}

/// Of the types in a BPF object that the kernel may have, too: without the flavour (`___` and what follows)
/// that distinguishes kernel versions.
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
