//! `vmaudit symbols` on real files, held against readelf(1); stripped, without debug file but with
//! .gnu_debugdata, non-PIE, truncated and damaged ones.

use crate::support::{self, program, skip, vmaudit};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

fn symbols<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    Command::new(vmaudit()).arg("symbols").args(arguments).output().expect("vmaudit starts")
}

fn listed(file: &Path) -> Value {
    let done = symbols(&[OsStr::new("-f"), OsStr::new("json"), file.as_os_str()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).expect("JSON")
}

fn functions(report: &Value) -> &Vec<Value> {
    report["files"][0]["functions"].as_array().expect("functions")
}

/// Does what the shell says; false, with a SKIP line, where a tool is missing.
fn made(test: &str, script: &str, folder: &Path) -> bool {
    let done = Command::new("sh").args(["-ec", script]).current_dir(folder).output().expect("sh");
    if !done.status.success() {
        skip(test, &String::from_utf8_lossy(&done.stderr));
    }
    done.status.success()
}

/// Name and address of each function symbol, as readelf has them.
fn readelf(file: &Path) -> Option<BTreeSet<(String, u64)>> {
    let done = Command::new("readelf").arg("-sW").arg(file).output().ok()?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, value, _, kind, _, _, section, name, ..] = words[..] else { return None };
        let expected = matches!(kind, "FUNC" | "IFUNC") && section != "UND";
        let plain = name.split('@').next().unwrap_or(name);
        expected.then(|| (plain.to_owned(), u64::from_str_radix(value, 16).unwrap_or(0)))
    };
    Some(text.lines().filter_map(row).collect())
}

#[test]
fn every_function_that_readelf_knows_is_listed() {
    let probed = program("probed");
    let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    for file in [probed.as_path(), libc, Path::new("/bin/bash")] {
        let Some(theirs) = readelf(file).filter(|theirs| !theirs.is_empty()) else {
            skip("symbols_readelf", "no readelf, or no such file");
            continue;
        };
        let report = listed(file);
        let ours: BTreeSet<(String, u64)> = functions(&report)
            .iter()
            .filter(|f| f["skipped"] != "imported")
            .filter_map(|f| {
                let address = f["address"].as_str()?.strip_prefix("0x")?;
                Some((f["name"].as_str()?.to_owned(), u64::from_str_radix(address, 16).ok()?))
            })
            .collect();
        let missing: Vec<_> = theirs.difference(&ours).take(5).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", file.display());
    }
}

#[test]
fn offsets_hold_the_code_of_their_function() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = support::manifest_dir().join("tests/programs/probed.c");
    let script = format!(
        "gcc -O1 -o pie -pie -fPIE {0}; gcc -O1 -no-pie -o fixed {0}; \
         gcc -O1 -no-pie -Wl,-Ttext-segment=0x70000000 -o moved {0}",
        source.display()
    );
    if !made("symbols_offsets", &script, folder.path()) {
        return;
    }
    let mut code = Vec::new();
    for name in ["pie", "fixed", "moved"] {
        let file = folder.path().join(name);
        let report = listed(&file);
        let leaf = functions(&report).iter().find(|f| f["name"] == "leaf").expect("leaf");
        let hex = |key: &str| {
            let text = leaf[key].as_str().and_then(|text| text.strip_prefix("0x")).expect("a number");
            usize::from_str_radix(text, 16).expect("hexadecimal")
        };
        let (offset, size) = (hex("offset"), leaf["size"].as_u64().expect("a size") as usize);
        code.push(std::fs::read(&file).expect("read")[offset..offset + size].to_vec());
        assert_eq!(name == "pie", hex("address") < 0x10_0000, "{name}");
    }
    assert!(code.iter().all(|each| *each == code[0]), "{code:x?}");
}

#[test]
fn static_functions_of_a_stripped_file_come_from_its_mini_debug_info() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = support::manifest_dir().join("tests/programs/probed.c");
    let script = format!(
        "gcc -O1 -o whole {}; objcopy --only-keep-debug whole mini; strip --strip-debug mini; \
         xz -k mini; strip -o bare whole; \
         objcopy --add-section .gnu_debugdata=mini.xz bare with",
        source.display()
    );
    if !made("symbols_mini", &script, folder.path()) {
        return;
    }
    let leaf = |name: &str| {
        let report = listed(&folder.path().join(name));
        functions(&report).iter().find(|f| f["name"] == "leaf").cloned()
    };
    assert_eq!(leaf("bare"), None);
    let (whole, mini) = (leaf("whole").expect("leaf"), leaf("with").expect("leaf"));
    assert_eq!(mini["tables"], serde_json::json!(["gnu_debugdata"]));
    assert_eq!((&mini["offset"], &mini["size"]), (&whole["offset"], &whole["size"]));
    // If damaged, that is reported, and the rest is valid.
    let mut bytes = std::fs::read(folder.path().join("with")).expect("read");
    let magic = b"\xfd7zXZ\0";
    let at = bytes.windows(6).position(|window| window == magic).expect("xz");
    bytes[at + 40] ^= 0xff;
    let damaged = folder.path().join("damaged");
    std::fs::write(&damaged, bytes).expect("written");
    let report = listed(&damaged);
    assert!(
        report["files"][0]["notes"][0].as_str().is_some_and(|note| note.contains("gnu_debugdata")),
        "{report}"
    );
}

#[test]
fn what_is_no_program_of_this_machine_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = std::fs::read(program("probed")).expect("read");
    let with = |at: usize, bytes: &[u8]| {
        let mut file = own.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("empty", Vec::new(), "an empty file"),
        (
            "text",
            b"#!/bin/sh\necho not a program, but a script that is longer than a header is\n".to_vec(),
            "but text",
        ),
        ("i386", with(4, &[1]), "32-bit"),
        ("big-endian", with(5, &[2]), "big-endian"),
        ("arm", with(18, &[183, 0]), "AARCH64"),
        ("object", with(16, &[1, 0]), "not linked yet"),
        ("core", with(16, &[4, 0]), "core dump"),
        ("cut", own[..80].to_vec(), "truncated"),
    ];
    for (name, bytes, words) in cases {
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).expect("written");
        let done = symbols(&[&file]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(125), "{name}: {said}");
        assert!(said.contains(words), "{name}: {said}");
    }
    assert_eq!(symbols(&["/dev/zero"]).status.code(), Some(125));
    assert_eq!(symbols(&["--lib", "libc.so.6", "--match", "["]).status.code(), Some(2));
}

/// Each byte of the headers, and many of the tables, changed in turn; each length.
#[test]
fn no_damage_makes_it_panic() {
    use vmaudit::objects::{DebugFiles, FunctionTable, Object};
    let folder = tempfile::tempdir().expect("a folder");
    let source = support::manifest_dir().join("tests/programs/probed.c");
    if !made("symbols_damage", &format!("gcc -O1 -o whole {}", source.display()), folder.path()) {
        return;
    }
    let whole = std::fs::read(folder.path().join("whole")).expect("read");
    let check = |bytes: Vec<u8>| {
        if let Ok(object) = Object::from_bytes(bytes) {
            let table = FunctionTable::read(&object, DebugFiles::default());
            table.functions().iter().for_each(|function| drop(table.name(function).to_vec()));
            assert!(table.functions().len() < 10_000);
        }
    };
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..1500usize {
        let mut bytes = whole.clone();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let tail = whole.len() - (random >> 33) as usize % (whole.len() / 3);
        let at = if round < 1000 { round } else { tail.min(whole.len() - 1) };
        bytes[at] = if round % 2 == 0 { 0xff } else { (random >> 56) as u8 };
        check(bytes);
    }
    for len in (0..whole.len()).step_by(101) {
        check(whole[..len].to_vec());
    }
}
