//! Code without unwind tables, and other languages' stacks.

use crate::unwind::captured::*;
use std::process::Command;
use vmaudit::model::{Completeness, FrameKind};

#[test]
fn musl_is_scanned_and_marked_as_guesses() {
    if !have("musl-gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let builds =
        ["-O2 -static", "-O0 -static", "-O2 -static-pie -fPIE", "-O2", "-O2 -static -fno-omit-frame-pointer"];
    for flags in builds {
        let program = build(dir.path(), &format!("musl-gcc {flags} unwind_musl.c"), "musl");
        let stripped = dir.path().join("stripped/musl");
        std::fs::create_dir_all(stripped.parent().unwrap()).unwrap();
        run_tool(Command::new("strip").arg("-s").arg("-o").arg(&stripped).arg(&program));
        for (mode, expected) in [
            ("malloc", ["musl!inner", "musl!outer", "musl!main"].as_slice()),
            ("qsort", &["musl!compare"]),
            ("qsort", &["musl!sorts", "musl!outer", "musl!main"]),
        ] {
            for program in [&program, &stripped] {
                let (stack, table, _) = unwind_one(Command::new(program).arg(mode));
                let mut namer = Namer::default();
                namer.load(program, &dir.path().join("musl"));
                let names = namer.names(&table, &stack);
                assert_run(&names, expected);
                assert_eq!(stack.completeness, Completeness::Incomplete, "{flags}");
                assert!(stack.frames.iter().any(|f| f.kind == FrameKind::Guess), "{flags}");
                assert!(stack.frames.len() < 16, "{flags}: {names:#?}");
            }
        }
    }
}
