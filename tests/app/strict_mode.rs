//! A program that requests seccomp's strict mode is refused under the hold, and that is reported.

use crate::support::{audit, program, skip, skip_without_bpf};

const EINVAL: i32 = 22;

/// What the command's exit status was, and what vmaudit said.
fn strict(options: &[&str], by_seccomp: bool) -> (Option<i32>, String) {
    let mut command = vec![program("target_modes").into_os_string(), "strict".into(), "14".into()];
    command.extend(by_seccomp.then(|| "seccomp".into()));
    let audit = audit(options, &command);
    (audit.code(), audit.stderr)
}

fn under_a_filter() -> bool {
    // SAFETY: PR_GET_SECCOMP takes nothing else.
    let filtered = unsafe { libc::prctl(libc::PR_GET_SECCOMP) } != 0;
    if filtered {
        skip("strict_mode", "these tests are under a seccomp filter: strict mode is refused anyway");
    }
    filtered
}

#[test]
fn who_is_refused_is_named_with_every_backend() {
    if under_a_filter() {
        return;
    }
    for (backend, remedy) in
        [("bpf", "with --no-exit-hold"), ("perf", "with --no-exit-hold"), ("notify", "--backend bpf or perf")]
    {
        if backend == "bpf" && skip_without_bpf("strict_mode") {
            continue;
        }
        for by_seccomp in [false, true] {
            let (code, said) = strict(&["--backend", backend], by_seccomp);
            assert_eq!(code, Some(EINVAL), "{said}");
            assert!(said.contains("(target_modes) requested seccomp's strict mode"), "{backend}: {said}");
            assert!(said.contains(remedy), "{backend}: {said}");
        }
    }
}

#[test]
fn without_the_hold_it_works_and_nothing_is_said() {
    if under_a_filter() {
        return;
    }
    for backend in ["bpf", "perf"] {
        if backend == "bpf" && skip_without_bpf("strict_mode") {
            continue;
        }
        let (code, said) = strict(&["--backend", backend, "--no-exit-hold"], false);
        assert_eq!(code, Some(14), "{said}");
        assert!(!said.contains("strict mode"), "{said}");
    }
}

#[test]
fn who_installs_a_listener_of_its_own_is_named() {
    for (backend, remedy) in
        [("bpf", "with --no-exit-hold"), ("perf", "with --no-exit-hold"), ("notify", "--backend bpf or perf")]
    {
        if backend == "bpf" && skip_without_bpf("strict_mode") {
            continue;
        }
        let audit =
            audit(&["--backend", backend], &[program("target_modes").into_os_string(), "listener".into()]);
        assert_eq!(audit.stdout, "listener 16\n", "EBUSY: {}", audit.stderr);
        assert!(audit.stderr.contains("(target_modes) requested a seccomp listener"), "{}", audit.stderr);
        assert!(audit.stderr.contains(remedy), "{backend}: {}", audit.stderr);
    }
}
