use vmaudit::doctor::*;
use vmaudit::model::{
    Capabilities, Capability, LoadTrial, Missing, Outcome, Part, Privileges, ProgramTrial, Refusal, Trial,
    TrialArea,
};
use vmaudit::sys::abi::{EACCES, EAGAIN, EBUSY, ECHILD, EINVAL, EIO, EMFILE, ENOENT, ENOSYS, EPERM};

/// An ordinary user on a host.
fn user() -> Privileges {
    Privileges {
        btf: true,
        uid: 1000,
        first_user_namespace: true,
        first_pid_namespace: true,
        perf_event_paranoid: Some(2),
        exe: "/usr/local/bin/vmaudit".to_owned(),
        ..Privileges::default()
    }
}

/// Root in a default container.
fn contained() -> Privileges {
    Privileges { uid: 0, seccomp_filter: true, first_pid_namespace: false, ..user() }
}

fn with(privileges: Privileges, capabilities: &[Capability]) -> Privileges {
    let bits = capabilities.iter().fold(0, |bits, each| bits | 1 << (*each as u32));
    Privileges { effective: Capabilities(bits), ..privileges }
}

fn commands(advice: &Advice) -> String {
    advice.commands.iter().map(|each| format!("{}: {}\n", each.when, each.command)).collect()
}

#[test]
fn what_bpf_lacks() {
    let of = |privileges: &Privileges| advice_for(Rung::Bpf, &refused_with(EPERM), privileges);
    let advice = of(&user());
    assert_eq!(advice.why, "CAP_BPF and CAP_PERFMON are missing");
    assert!(commands(&advice).contains("sudo setcap cap_bpf,cap_perfmon+ep /usr/local/bin/vmaudit"));
    assert_eq!(of(&with(user(), &[Capability::Bpf])).why, "CAP_PERFMON is missing");
    assert!(of(&Privileges { uid: 0, ..user() }).why.contains("though this is root"));
    let advice = of(&contained());
    assert!(advice.why.ends_with("missing in this container"), "{}", advice.why);
    for expected in ["--cap-add BPF --cap-add PERFMON", "--cap-add SYS_ADMIN", "sudo vmaudit attach"] {
        assert!(commands(&advice).contains(expected), "{expected}");
    }
    // The capabilities are there, and the profile is what forbids.
    let profile = of(&with(contained(), &[Capability::SysAdmin]));
    assert!(profile.why.contains("seccomp profile") && commands(&profile).contains("seccomp=unconfined"));
    let rootless = of(&Privileges { first_user_namespace: false, ..contained() });
    assert!(rootless.why.contains("user namespace"), "{}", rootless.why);
    let locked = Privileges { lockdown: Some("confidentiality".to_owned()), ..user() };
    assert!(of(&with(locked, &[Capability::SysAdmin])).why.contains("locked down"));
    assert!(of(&Privileges { btf: false, ..user() }).why.contains("BTF"));
}

#[test]
fn what_perf_lacks() {
    let of = |errno, privileges: &Privileges| advice_for(Rung::Perf, &refused_with(errno), privileges);
    let strict = Privileges { perf_event_paranoid: Some(3), ..user() };
    let advice = of(EACCES, &strict);
    assert_eq!(advice.why, "kernel.perf_event_paranoid is 3");
    assert!(commands(&advice).contains("sysctl kernel.perf_event_paranoid=2"));
    assert!(commands(&advice).contains("setcap cap_bpf,cap_perfmon+ep"));
    // With the capability the setting does not matter.
    assert!(!of(EPERM, &with(strict, &[Capability::Perfmon])).why.contains("paranoid"));
    let profile = of(EPERM, &contained());
    assert!(profile.why.contains("seccomp profile forbids perf_event_open"), "{}", profile.why);
    assert!(commands(&profile).contains("--cap-add PERFMON"));
    assert!(of(EPERM, &user()).why.contains("locked memory"));
    assert!(of(EBUSY, &user()).why.contains("another tracer"));
    assert!(commands(&of(EMFILE, &user())).contains("ulimit -n"));
}

#[test]
fn what_notify_lacks() {
    let of = |errno, privileges: &Privileges| advice_for(Rung::Notify, &refused_with(errno), privileges);
    assert!(of(EBUSY, &user()).why.contains("listener already"));
    assert!(of(EPERM, &contained()).why.contains("seccomp profile"));
    let of = |errno, step, privileges: &Privileges| {
        advice_for(Rung::Notify, &RungFailure { step, ..refused_with(errno) }, privileges).why
    };
    let listener = |errno| of(errno, FailedStep::Listener, &user());
    assert!(listener(EINVAL).contains("no seccomp user notification (EINVAL"));
    assert!(listener(ENOSYS).contains("no seccomp(2) (ENOSYS)"));
    assert!(listener(EPERM).contains("refused"), "the kernel has it, or it would not refuse it");
    assert!(of(ENOENT, FailedStep::ProcFile, &user()).contains("/proc"));
}

/// A limit is a limit on every rung, and an error that many things lead to is repeated, not explained.
#[test]
fn no_error_but_its_own_means_that_the_kernel_lacks_something() {
    let lacks = ["the kernel has no", "there is no", "is built without", "CONFIG_"];
    for rung in [Rung::Bpf, Rung::Perf, Rung::Notify] {
        let forked = RungFailure { step: FailedStep::NewProcess, ..refused_with(EAGAIN) };
        let advice = advice_for(rung, &forked, &user());
        assert!(advice.why.contains("RLIMIT_NPROC") && commands(&advice).contains("ulimit -u"), "{advice:?}");
        for errno in [EAGAIN, EINVAL, EIO, ECHILD] {
            let why = advice_for(rung, &refused_with(errno), &user()).why;
            assert!(!lacks.iter().any(|lacks| why.contains(lacks)), "{rung:?}: {why}");
        }
        let blind = with(Privileges { no_proc: true, ..user() }, &[Capability::SysAdmin]);
        for errno in [EPERM, ENOENT, ENOSYS] {
            let advice = advice_for(rung, &refused_with(errno), &blind);
            assert!(advice.why.starts_with("/proc shows nothing"), "{rung:?}: {}", advice.why);
            assert!(commands(&advice).contains("mount -t proc"), "{advice:?}");
        }
        // What is missing is known without /proc.
        let poor = Privileges { no_proc: true, ..user() };
        let why = advice_for(rung, &refused_with(EPERM), &poor).why;
        assert_eq!(why.contains("CAP_BPF"), rung == Rung::Bpf, "{why}");
    }
}

fn trial(id: &'static str, outcome: Outcome) -> Trial {
    Trial { area: TrialArea::Reading, id, what: "", outcome, detail: String::new(), without: "" }
}

fn refused() -> Outcome {
    Outcome::Refused { errno: EACCES, name: "EACCES".to_owned() }
}

fn refused_with(errno: i32) -> RungFailure {
    RungFailure { text: "refused".to_owned(), errno: Some(errno), ..RungFailure::default() }
}

fn failed(errno: i32) -> Option<RungFailure> {
    Some(refused_with(errno))
}

/// A program that was refused, by root on a host that is not locked down.
fn verdict(missing: Option<Missing>, verifier: &[&str], privileges: &Privileges) -> Advice {
    let refusal = Refusal {
        object: "heap".to_owned(),
        part: Part::Program("heap_entry".to_owned()),
        errno: Some(EACCES),
        missing,
        verifier: verifier.iter().map(|line| (*line).to_owned()).collect(),
    };
    let failure = RungFailure { refusal: Some(refusal), ..refused_with(EACCES) };
    advice_for(Rung::Bpf, &failure, privileges)
}

/// EACCES is the verifier's number, too: capabilities have no part in that.
#[test]
fn a_verdict_depends_on_program_and_on_what_is_missing() {
    let root =
        with(Privileges { uid: 0, lockdown: Some("none".to_owned()), ..user() }, &[Capability::SysAdmin]);
    let kfunc = verdict(Some(Missing::Kfunc("bpf_x".to_owned())), &[], &user());
    assert!(kfunc.why.contains("bpf_x") && kfunc.why.contains("heap_entry"), "{}", kfunc.why);
    let words = verdict(None, &["R1 invalid mem access 'scalar'", "processed 9 insns"], &user());
    assert!(words.why.ends_with("the program heap_entry: R1 invalid mem access 'scalar'"), "{}", words.why);
    assert!(commands(&words).contains("-v"), "{words:?}");
    let helper = |name: &str, privileges: &Privileges| {
        verdict(Some(Missing::Helper(name.to_owned())), &[], privileges)
    };
    assert!(helper("bpf_x", &root).why.contains("the helper bpf_x"));
    for name in ["bpf_probe_read", "bpf_probe_read_kernel", "bpf_probe_read_kernel_str"] {
        let locked = Privileges { lockdown: Some("confidentiality".to_owned()), ..root.clone() };
        let advice = helper(name, &locked);
        assert!(
            advice.why.contains("locked down (confidentiality)") && advice.why.contains(name),
            "{advice:?}"
        );
        assert!(commands(&advice).contains("lockdown=integrity"));
        // Not seen is not guessed: how to see it is said.
        let unseen = helper(name, &Privileges { lockdown: None, ..root.clone() });
        assert!(commands(&unseen).contains("mount -t securityfs"), "{unseen:?}");
        assert!(!helper(name, &root).why.contains("locked"), "lockdown is off");
    }
    assert!(!helper("bpf_probe_read_user", &Privileges { lockdown: None, ..root }).why.contains("lockdown"));
}

#[test]
fn what_is_not_known_is_not_guessed() {
    let root = with(Privileges { uid: 0, ..user() }, &[Capability::SysAdmin]);
    let map = Refusal { part: Part::Map("threads".to_owned()), errno: Some(EINVAL), ..Refusal::default() };
    let failure = RungFailure { refusal: Some(map), ..refused_with(EINVAL) };
    assert!(advice_for(Rung::Bpf, &failure, &root).why.contains("the map threads"));
    for errno in [EINVAL, EBUSY] {
        let advice = advice_for(Rung::Bpf, &refused_with(errno), &root);
        assert!(advice.why.contains("does not say why") && !advice.why.contains("Linux"), "{}", advice.why);
    }
}

#[test]
fn tracepoints_that_are_not_there() {
    let of = |privileges: &Privileges| advice_for(Rung::Perf, &refused_with(ENOENT), privileges);
    let locked = of(&Privileges { lockdown: Some("confidentiality".to_owned()), ..user() });
    assert!(locked.why.contains("locked down") && !locked.why.contains("CONFIG"), "{}", locked.why);
    let unseen = of(&Privileges { reads_kernel_memory: Some(false), ..user() });
    assert!(unseen.why.contains("lockdown=confidentiality") && commands(&unseen).contains("securityfs"));
    let other =
        of(&Privileges { lockdown: Some("none".to_owned()), reads_kernel_memory: Some(true), ..user() });
    assert!(other.why.contains("CONFIG_FTRACE_SYSCALLS") && commands(&other).contains("dmesg"), "{other:?}");
}

#[test]
fn the_best_that_works_is_taken_and_the_next_is_advised_first() {
    let trials = || vec![trial("smaps-own", Outcome::Works), trial("smaps-other", refused())];
    let of = |bpf, perf, notify| {
        let rungs = vec![(Rung::Notify, notify), (Rung::Bpf, bpf), (Rung::Perf, perf)];
        diagnose(contained(), (trials(), Vec::new()), rungs)
    };
    let unlocked = |diagnosis: &Diagnosis| diagnosis.advice.iter().map(|a| a.unlocks).collect::<Vec<_>>();
    let found = of(failed(EPERM), failed(EPERM), None);
    assert_eq!((found.auto, unlocked(&found)), (Some(Rung::Notify), vec!["perf", "bpf"]));
    let all = [Rung::Bpf, Rung::Perf, Rung::Notify, Rung::Snapshot];
    assert_eq!(found.rungs.iter().map(|tried| tried.rung).collect::<Vec<_>>(), all);
    let found = of(failed(EPERM), None, None);
    assert_eq!((found.auto, unlocked(&found)), (Some(Rung::Perf), vec!["bpf"]));
    // All refused: nothing is taken, and each has its advice.
    let found = of(failed(EPERM), failed(EPERM), failed(EPERM));
    assert_eq!((found.auto, unlocked(&found)), (None, vec!["notify", "perf", "bpf"]));
    // With bpf what is left are other users' processes.
    let found = of(None, failed(EPERM), None);
    assert_eq!((found.auto, unlocked(&found)), (Some(Rung::Bpf), vec!["other users' processes"]));
    assert_eq!(found.rungs[0].reach, Reach::Own);
    assert_eq!(found.rungs[1].reach, Reach::Nobody, "perf attaches to nothing");
}

#[test]
fn reach_is_what_was_tried() {
    let bpf = || vec![(Rung::Bpf, None)];
    let trials = |own, other| vec![trial("smaps-own", own), trial("smaps-other", other)];
    let of =
        |privileges, own, other| diagnose(privileges, (trials(own, other), Vec::new()), bpf()).rungs[0].reach;
    assert_eq!(of(user(), Outcome::Works, Outcome::Works), Reach::Everybody);
    assert_eq!(of(user(), refused(), refused()), Reach::Nobody);
    let nobody_else = || Outcome::Absent("nobody else".to_owned());
    assert_eq!(of(user(), Outcome::Works, nobody_else()), Reach::Own);
    let ptrace = with(user(), &[Capability::SysPtrace]);
    assert_eq!(of(ptrace, Outcome::Works, nobody_else()), Reach::Everybody);
}

fn load(command: &'static str, way: &'static str, programs: &[(&str, bool)]) -> LoadTrial {
    let program = |&(name, taken): &(&str, bool)| {
        let refusal = Refusal {
            part: Part::Program(name.to_owned()),
            errno: Some(EACCES),
            verifier: vec![format!("{name} is too large")],
            ..Refusal::default()
        };
        ProgramTrial { name: name.to_owned(), refusal: (!taken).then_some(refusal) }
    };
    LoadTrial { command, way, programs: programs.iter().map(program).collect(), ..LoadTrial::default() }
}

/// Each command's verdict: by what it works, or why not.
fn verdicts(bpf: Option<RungFailure>, loads: Vec<LoadTrial>) -> Vec<(&'static str, Result<String, String>)> {
    let root = with(Privileges { uid: 0, ..user() }, &[Capability::SysAdmin]);
    let rungs = vec![(Rung::Bpf, bpf), (Rung::Perf, None)];
    let found = diagnose(root, (Vec::new(), loads), rungs);
    found.commands.into_iter().map(|command| (command.name, command.outcome)).collect()
}

fn verdict_of(of: &[(&'static str, Result<String, String>)], name: &str) -> Result<String, String> {
    of.iter().find(|(known, _)| *known == name).map(|(_, outcome)| outcome.clone()).expect("a verdict")
}

#[test]
fn what_is_refused_takes_the_commands_that_need_it() {
    let loads = || {
        vec![
            load("run, attach", "", &[("exec", true), ("any", true)]),
            load("--touch, --container", "", &[("exec", true), ("any", true), ("fault", false)]),
            load("heap", "uprobe session", &[("session", false)]),
            load("heap", "uprobe multi", &[("entries", true), ("returns", true)]),
            load("heap --sample", "uprobe multi", &[("entries", true), ("returns", true)]),
            load("heap --combined", "uprobe multi", &[("entries", true), ("returns", false)]),
            load("probe", "uprobe multi", &[("many", true)]),
            load("probe --stacks", "uprobe multi", &[("many", true)]),
        ]
    };
    let of = verdicts(None, loads());
    let works = |how: &str| Ok(how.to_owned());
    assert_eq!(verdict_of(&of, "attach, events -p, top -t"), works("backend bpf"));
    assert_eq!(verdict_of(&of, "--container"), works("backend bpf"), "page faults are not its business");
    assert_eq!(verdict_of(&of, "heap"), works("uprobe multi"));
    assert_eq!(verdict_of(&of, "probe --stacks"), works("uprobe multi"));
    let touch = verdict_of(&of, "--touch").expect_err("its program is refused");
    assert!(touch.contains("fault is too large"), "{touch}");
    let combined = verdict_of(&of, "heap --combined").expect_err("a program is refused");
    assert!(combined.contains("returns is too large"), "{combined}");
    // Without the tracer of mappings nothing of heap works; counting alone does.
    let of = verdicts(failed(EPERM), loads());
    assert_eq!(verdict_of(&of, "run, events -- CMD, compare"), works("backend perf"));
    assert_eq!(verdict_of(&of, "probe"), works("uprobe multi"));
    for name in ["attach, events -p, top -t", "--touch", "--container", "heap", "probe --stacks"] {
        assert!(verdict_of(&of, name).is_err(), "{name}");
    }
}

#[test]
fn a_program_that_the_backend_does_without_is_no_loss() {
    let fallback = [("exec", true), ("any", false)];
    let loads = vec![load("run, attach", "", &fallback), load("--touch, --container", "", &fallback)];
    let of = verdicts(None, loads);
    for name in ["attach, events -p, top -t", "--touch", "--container"] {
        assert!(verdict_of(&of, name).is_ok(), "{name}");
    }
    let more = [("exec", true), ("any", false), ("fault", false)];
    let loads = vec![load("run, attach", "", &fallback), load("--touch, --container", "", &more)];
    assert!(verdict_of(&verdicts(None, loads), "--touch").is_err_and(|why| why.contains("fault")));
    let container = [("exec", false), ("any", false)];
    let loads = vec![load("run, attach", "", &fallback), load("--touch, --container", "", &container)];
    let of = verdicts(None, loads);
    assert!(verdict_of(&of, "--container").expect_err("refused").contains("exec is too large"));
}

#[test]
fn what_was_not_tried_does_not_work() {
    let of = verdicts(failed(EPERM), Vec::new());
    for name in ["heap", "heap --combined", "probe", "probe --stacks", "--touch"] {
        assert!(verdict_of(&of, name).is_err(), "{name}");
    }
    let of = verdicts(None, Vec::new());
    assert!(verdict_of(&of, "probe").expect_err("nothing was loaded").contains("not tried"));
}
