//! What prevents a rung, and the commands that remove it.
//!
//! The numbers are those of Linux on every architecture that vmaudit supports (include/uapi/
//! asm-generic/errno-base.h).

use super::{FailedStep, Rung, RungFailure};
use crate::model::{Capability, Missing, Part, Privileges, Refusal};
use crate::sys::abi::{EACCES, EAGAIN, EBUSY, EINVAL, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSYS, EPERM};

/// Something to type, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// `once`, `for good`, `Docker`.
    pub when: &'static str,
    pub command: String,
}

/// What would help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// `bpf`, or what else it unlocks.
    pub unlocks: &'static str,
    /// What is in the way.
    pub why: String,
    pub commands: Vec<Command>,
}

fn command(when: &'static str, command: impl Into<String>) -> Command {
    Command { when, command: command.into() }
}

/// For a rung that failed.
pub fn advice_for(rung: Rung, failure: &RungFailure, privileges: &Privileges) -> Advice {
    let errno = failure.errno;
    let (why, commands) = match (errno, rung) {
        (Some(EMFILE), _) => {
            ("this process may not open more files".to_owned(), vec![command("this shell", "ulimit -n 4096")])
        }
        (Some(ENFILE), _) => (
            "the system has no file descriptors left".to_owned(),
            vec![command("once", "sudo sysctl fs.file-max=1000000")],
        ),
        (Some(ENOMEM), _) => (
            "the kernel has no memory for it".to_owned(),
            vec![command("once", "vmaudit run --ring-bytes 4194304 …")],
        ),
        (Some(EAGAIN), _) if failure.step == FailedStep::NewProcess => no_process(),
        _ if privileges.no_proc && !lacks_capabilities(rung, errno, privileges) => no_proc(),
        (_, Rung::Bpf) => bpf(failure, privileges),
        (_, Rung::Perf) => perf(failure, privileges),
        (_, Rung::Notify) => notify(failure, privileges),
        (_, Rung::Snapshot) => (format!("/proc cannot be read: {}", failure.text), Vec::new()),
    };
    Advice { unlocks: rung.name(), why, commands }
}

/// Which is known without /proc, and reason enough.
fn lacks_capabilities(rung: Rung, errno: Option<i32>, privileges: &Privileges) -> bool {
    let is_refused = rung == Rung::Bpf && matches!(errno, Some(EPERM | EACCES));
    is_refused && missing(&[Capability::Bpf, Capability::Perfmon], privileges).is_some()
}

/// fork(2) gives EAGAIN for these alone.
fn no_process() -> (String, Vec<Command>) {
    let why = "no further process can be started (EAGAIN): the limit of this user's processes (RLIMIT_NPROC), or of \
               this cgroup's (pids.max), is reached";
    let commands = vec![
        command("this shell", "ulimit -u $(ulimit -Hu)"),
        command(
            "to see it",
            "ulimit -u; cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup | tail -1)/pids.max",
        ),
    ];
    (why.to_owned(), commands)
}

fn no_proc() -> (String, Vec<Command>) {
    let why = "/proc shows nothing of vmaudit itself: it is not mounted here, or is another PID namespace's";
    (why.to_owned(), vec![command("once", "sudo mount -t proc proc /proc")])
}

/// Nothing is concluded from an error that many things can lead to.
fn unexplained(failure: &RungFailure) -> (String, Vec<Command>) {
    (format!("{}; why is not known", failure.text), Vec::new())
}

/// `CAP_BPF and CAP_PERFMON are`, of those that are not there.
fn missing(required: &[Capability], privileges: &Privileges) -> Option<String> {
    let missing: Vec<_> =
        required.iter().filter(|&&each| !privileges.effective.allows(each)).map(|each| each.name()).collect();
    let verb = if missing.len() == 1 { "is" } else { "are" };
    (!missing.is_empty()).then(|| format!("{} {verb}", missing.join(" and ")))
}

fn in_container(privileges: &Privileges) -> bool {
    !privileges.first_pid_namespace || privileges.seccomp_filter
}

/// On the host, whatever the container allows.
fn from_the_host() -> Command {
    command("on the host", "sudo vmaudit attach -p PID")
}

fn setcap(capabilities: &str, privileges: &Privileges) -> Command {
    command("for good", format!("sudo setcap {capabilities}+ep {}", privileges.exe))
}

const CONFIDENTIALITY: &str = "confidentiality";

/// Under lockdown: how to see it where securityfs is not mounted.
fn see_lockdown() -> Command {
    command(
        "to see it",
        "sudo mount -t securityfs securityfs /sys/kernel/security; cat /sys/kernel/security/lockdown",
    )
}

/// To be had at boot only.
fn unlock() -> Command {
    command("at boot", "lockdown=integrity on the kernel's command line")
}

/// What the verifier, or libbpf before it, found to be missing or wrong.
fn verdict(refusal: &Refusal, privileges: &Privileges) -> (String, Vec<Command>) {
    let subject = refusal.subject();
    let reads_memory = |helper: &str| helper.starts_with("bpf_probe_read") && !helper.contains("user");
    match &refusal.missing {
        Some(Missing::Helper(helper)) if reads_memory(helper) => match privileges.lockdown.as_deref() {
            Some(CONFIDENTIALITY) => (
                format!(
                    "the kernel is locked down (confidentiality): BPF may not read its memory ({helper}), as \
                     {subject} does"
                ),
                vec![unlock()],
            ),
            Some(_) => (format!("this kernel refuses {subject} the helper {helper}"), Vec::new()),
            None => (
                format!(
                    "BPF may not read the kernel's memory here ({helper}), as {subject} does: so it is under \
                     lockdown=confidentiality, which cannot be seen, because securityfs is not mounted"
                ),
                vec![see_lockdown()],
            ),
        },
        Some(Missing::Helper(helper)) => {
            (format!("this kernel refuses {subject} the helper {helper}"), Vec::new())
        }
        Some(Missing::Kfunc(name)) => (
            format!("this kernel has no function {name} for BPF programs (kfunc), or not for {subject}"),
            Vec::new(),
        ),
        Some(Missing::Type(name)) => {
            (format!("this kernel has no {name}, which {subject} reads"), Vec::new())
        }
        Some(Missing::Target(name)) => {
            (format!("this kernel has nothing called {name}, which {subject} is for"), Vec::new())
        }
        Some(Missing::Btf) => no_btf(),
        None => {
            let words = refusal.verdict().unwrap_or("it does not say why");
            (format!("the kernel's verifier does not take {subject}: {words}"), vec![see_more()])
        }
    }
}

/// The last lines of the verifier's log.
fn see_more() -> Command {
    command("to see more", "the same command with -v, or vmaudit doctor -v")
}

fn no_btf() -> (String, Vec<Command>) {
    let why = "the kernel's types cannot be read: there is no /sys/kernel/btf/vmlinux (sysfs is not mounted at /sys, or \
               the kernel is built without CONFIG_DEBUG_INFO_BTF)";
    (why.to_owned(), vec![command("to see it", "ls /sys/kernel || sudo mount -t sysfs sysfs /sys")])
}

fn bpf(failure: &RungFailure, privileges: &Privileges) -> (String, Vec<Command>) {
    let errno = failure.errno;
    if !privileges.btf {
        return no_btf();
    }
    if let Some(refusal) = failure.refusal.as_ref().filter(|refusal| refusal.is_verdict()) {
        return verdict(refusal, privileges);
    }
    if !matches!(errno, Some(EPERM | EACCES | ENOSYS)) {
        let why = match failure.refusal.as_ref().map(|refusal| (&refusal.part, refusal.subject())) {
            Some((Part::Map(_), subject)) => format!("this kernel cannot create {subject} as requested"),
            Some((_, subject)) => format!("the kernel refuses {subject} and does not say why"),
            None => "the kernel refuses it and does not say why".to_owned(),
        };
        return (why, Vec::new());
    }
    // No capability helps against that.
    if errno == Some(ENOSYS) && !privileges.seccomp_filter {
        let why = "there is no bpf(2) (ENOSYS): the kernel is built without it (CONFIG_BPF_SYSCALL)";
        return (why.to_owned(), Vec::new());
    }
    if !privileges.first_user_namespace {
        let why = "vmaudit runs in a user namespace (a rootless container, as a rule): its capabilities \
                   do not reach BPF";
        return (why.to_owned(), vec![from_the_host()]);
    }
    let missing = missing(&[Capability::Bpf, Capability::Perfmon], privileges);
    match missing.filter(|_| errno != Some(ENOSYS)) {
        Some(missing) if in_container(privileges) => {
            let flags = "run --cap-add BPF --cap-add PERFMON";
            let commands = vec![
                command("Docker", format!("docker {flags} …")),
                command("Docker < 23", "docker run --cap-add SYS_ADMIN …"),
                command("Podman", format!("podman {flags} --security-opt seccomp=unconfined …")),
                from_the_host(),
            ];
            (format!("{missing} missing in this container"), commands)
        }
        Some(missing) if privileges.uid != 0 => {
            let commands = vec![command("once", "sudo vmaudit …"), setcap("cap_bpf,cap_perfmon", privileges)];
            (format!("{missing} missing"), commands)
        }
        Some(missing) => (
            format!("{missing} missing, though this is root: whatever started this shell has taken it away"),
            vec![command("systemd", "CapabilityBoundingSet=CAP_BPF CAP_PERFMON …")],
        ),
        None if privileges.seccomp_filter => (
            "a seccomp profile forbids bpf(2), whatever the capabilities".to_owned(),
            vec![
                command("Docker", "docker run --security-opt seccomp=unconfined …"),
                command("Podman", "podman run --security-opt seccomp=unconfined …"),
                from_the_host(),
            ],
        ),
        None if privileges.lockdown.as_deref() == Some(CONFIDENTIALITY) => (
            "the kernel is locked down (confidentiality): BPF may not read its memory".to_owned(),
            vec![unlock()],
        ),
        None => (
            "bpf(2) is refused, though the capabilities are there and no seccomp filter is in force: a security \
             module, or lockdown"
                .to_owned(),
            privileges.lockdown.is_none().then(see_lockdown).into_iter().collect(),
        ),
    }
}

/// Without tracing, no tracepoint has a number: "Tracing disabled due to lockdown" (kernel/trace/trace.c).
fn no_tracepoints(privileges: &Privileges) -> (String, Vec<Command>) {
    match (privileges.lockdown.as_deref(), privileges.reads_kernel_memory) {
        (Some(CONFIDENTIALITY), _) => (
            "the kernel is locked down (confidentiality), and has switched all its tracepoints off".to_owned(),
            vec![unlock()],
        ),
        (None, Some(false)) => (
            "no tracepoint can be opened, and BPF may not read the kernel's memory: so it is under \
             lockdown=confidentiality, which cannot be seen, because securityfs is not mounted"
                .to_owned(),
            vec![see_lockdown()],
        ),
        (lockdown, _) => (
            "no system call's tracepoint can be opened: tracefs cannot be had (/sys is not mounted), or the kernel has \
             none (CONFIG_FTRACE_SYSCALLS), or has switched tracing off"
                .to_owned(),
            vec![
                Some(command(
                    "to see it",
                    "ls /sys/kernel/tracing; grep FTRACE_SYSCALLS /boot/config-$(uname -r); sudo dmesg | grep -i tracing",
                )),
                lockdown.is_none().then(see_lockdown),
            ]
            .into_iter()
            .flatten()
            .collect(),
        ),
    }
}

fn perf(failure: &RungFailure, privileges: &Privileges) -> (String, Vec<Command>) {
    const MOST: i32 = 2;
    let errno = failure.errno;
    let level = privileges.perf_event_paranoid;
    if errno == Some(ENOENT) {
        return no_tracepoints(privileges);
    }
    if errno == Some(EBUSY) {
        let why = "another tracer (bpftrace, an older vmaudit as root) has a BPF program on the same \
                   tracepoints, and keeps their events from everybody else";
        return (why.to_owned(), vec![command("to find it", "sudo bpftool perf list")]);
    }
    if let Some(level) = level.filter(|&level| level > MOST)
        && (!privileges.effective.allows(Capability::Perfmon) || privileges.lent.allows(Capability::Perfmon))
    {
        // The file's capabilities are for the bpf backend alone.
        let commands = vec![
            command("until reboot", format!("sudo sysctl kernel.perf_event_paranoid={MOST}")),
            setcap("cap_bpf,cap_perfmon", privileges),
        ];
        return (format!("kernel.perf_event_paranoid is {level}"), commands);
    }
    if privileges.seccomp_filter && matches!(errno, Some(EPERM | EACCES | ENOSYS)) {
        let commands = vec![
            command("Docker", "docker run --cap-add PERFMON …"),
            command("Docker < 23, Podman", "docker run --security-opt seccomp=unconfined …"),
        ];
        return ("a seccomp profile forbids perf_event_open(2)".to_owned(), commands);
    }
    if errno == Some(EPERM) {
        let why = "the kernel refuses perf events: the limit of locked memory, or a security module";
        return (why.to_owned(), vec![command("this shell", "ulimit -l $(ulimit -Hl)")]);
    }
    match errno {
        Some(EACCES) => ("the kernel refuses perf events (EACCES): a security module".to_owned(), Vec::new()),
        Some(ENOSYS) => (
            "there is no perf_event_open(2) (ENOSYS): the kernel is built without it (CONFIG_PERF_EVENTS)"
                .to_owned(),
            Vec::new(),
        ),
        _ => unexplained(failure),
    }
}

fn notify(failure: &RungFailure, privileges: &Privileges) -> (String, Vec<Command>) {
    let is_listener = failure.step == FailedStep::Listener;
    match failure.errno {
        Some(EBUSY) => (
            "the processes here have a seccomp listener already (EBUSY), and there can be one only"
                .to_owned(),
            vec![command("no calls", "vmaudit snapshot -p PID")],
        ),
        Some(EPERM | EACCES | ENOSYS) if privileges.seccomp_filter => (
            "a seccomp profile forbids what notification needs (seccomp(2), process_vm_readv(2))".to_owned(),
            vec![
                command("Docker", "docker run --security-opt seccomp=unconfined …"),
                command("Podman", "podman run --security-opt seccomp=unconfined …"),
            ],
        ),
        Some(EINVAL) if is_listener => (
            "the kernel has no seccomp user notification (EINVAL: CONFIG_SECCOMP_FILTER=y, Linux 5.5)".to_owned(),
            Vec::new(),
        ),
        Some(ENOSYS) if is_listener => (
            "there is no seccomp(2) (ENOSYS): the kernel is built without it (CONFIG_SECCOMP_FILTER=y), or a filter of \
             whatever started this shell says so"
                .to_owned(),
            Vec::new(),
        ),
        Some(EPERM | EACCES) if is_listener => (
            "seccomp(2) is refused, though no seccomp filter is in force: a security module".to_owned(),
            Vec::new(),
        ),
        Some(ENOENT) if failure.step == FailedStep::ProcFile => (
            "/proc does not show the held process: it is another PID namespace's, or mounted with subset=pid, or the \
             kernel has no /proc/TID/syscall (CONFIG_HAVE_ARCH_TRACEHOOK)"
                .to_owned(),
            vec![command("once", "sudo mount -t proc proc /proc")],
        ),
        _ => unexplained(failure),
    }
}

/// bpf works, but other users' processes cannot be read.
pub(super) fn others(privileges: &Privileges) -> Advice {
    Advice { unlocks: "other users' processes", ..ptrace(privileges) }
}

/// Other users' mappings are readable (CAP_PERFMON is enough for that since Linux 6.15, mm_access() in
/// kernel/fork.c), but not their memory or pages.
pub(super) fn all_of_others(privileges: &Privileges) -> Advice {
    Advice { unlocks: "exact pages and heap headers of other users' processes", ..ptrace(privileges) }
}

/// Files in /proc/PID that only the owner may open (pagemap, map_files) also require CAP_DAC_READ_SEARCH.
/// Both have to be the user's own: those of vmaudit's file do not open other users' processes.
fn ptrace(privileges: &Privileges) -> Advice {
    let missing = missing(&[Capability::SysPtrace, Capability::DacReadSearch], privileges);
    let why = missing.map_or_else(|| "a security module forbids it".to_owned(), |m| format!("{m} missing"));
    let commands = if in_container(privileges) {
        let flags = "run --cap-add SYS_PTRACE --cap-add DAC_READ_SEARCH";
        let line = |engine: &str| format!("{engine} {flags} …");
        vec![command("Docker", line("docker")), command("Podman", line("podman"))]
    } else {
        vec![command("once", "sudo vmaudit …")]
    };
    Advice { unlocks: "", why, commands }
}
