//! 32-bit programs: their calls are not traced, which is said; they have a last snapshot, and what they start
//! is audited as everything else.

use crate::support::report::{list, number};
use crate::support::{audit, program_built, skip, skip_without_bpf};

#[test]
fn they_are_named_and_their_children_kept() {
    let compat = match program_built("compat.s", &["gcc", "-m32", "-nostdlib", "-static"]) {
        Ok(compat) => compat.into_os_string(),
        Err(why) => return skip("compat_programs", &why),
    };
    let runs = std::process::Command::new(&compat).status();
    if !runs.is_ok_and(|status| status.code() == Some(5)) {
        return skip("compat_programs", "this kernel runs no 32-bit programs");
    }
    for backend in ["bpf", "perf", "notify"] {
        if backend == "bpf" && skip_without_bpf("compat_programs") {
            continue;
        }
        // It is the command, or one program starts the next.
        let nested = [compat.clone(), compat.clone(), "/bin/true".into()];
        let plain: [std::ffi::OsString; 3] = ["sh".into(), "-c".into(), "\"$0\" /bin/true; true; :".into()];
        let plain: Vec<_> = plain.into_iter().chain([compat.clone()]).collect();
        for (command, status, processes) in [(nested.to_vec(), 5, 3), (plain, 0, 3)] {
            let audit = audit(&["--backend", backend, "--min-virt", "0"], &command);
            assert_eq!(audit.code(), Some(status), "{}", audit.stderr);
            assert!(audit.stderr.contains("32-bit programs were started (compat"), "{}", audit.stderr);
            assert!(!audit.stderr.contains("could not be followed"), "{}", audit.stderr);
            let report = audit.report();
            assert_eq!(report.processes().len(), processes, "{backend}: {}", audit.stderr);
            for process in report.processes() {
                let resident = number(&process["totals"], "rss");
                assert!(resident > 0, "{backend}: nothing of {} was examined", process["comm"]);
                if process["comm"] == "true" {
                    assert_eq!(number(&process["coverage"], "ledger_drift"), 0, "{backend}");
                    assert_eq!(number(&process["coverage"], "unknown"), 0, "{backend}");
                }
            }
        }
    }
}

/// No call was missed, and none was before tracing began.
#[test]
fn what_nothing_explains_of_them_was_not_traced() {
    const TEST: &str = "what_nothing_explains_of_them_was_not_traced";
    let program = match program_built("own_mmap.c", &["gcc", "-m32", "-O1", "-pthread"]) {
        Ok(program) => program,
        Err(why) => return skip(TEST, &why),
    };
    if skip_without_bpf(TEST) {
        return;
    }
    let audit = audit(&[], &[program]);
    let report = audit.report();
    let process = report.first();
    let unknown = list(process, "findings").iter().find(|finding| finding["category"] == "unknown");
    let why = unknown.expect("its own 8 MiB")["why"].as_str().expect("text");
    assert!(why.starts_with("the calls of 32-bit programs are not traced"), "{why}");
}
