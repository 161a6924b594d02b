//! What was tried of the kernel, and with what result; and with which privileges.

pub mod refusal;

use crate::model::trial::refusal::Refusal;

/// How one attempt came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Works,
    /// Not something to try, but a setting that was read.
    Value(String),
    /// The kernel said no.
    Refused {
        errno: i32,
        /// `EPERM`.
        name: String,
    },
    /// It is not there, or there was nothing to try it on: why.
    Absent(String),
}

impl Outcome {
    pub fn works(&self) -> bool {
        *self == Outcome::Works
    }
}

/// What an attempt is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TrialArea {
    Bpf,
    Perf,
    Seccomp,
    Reading,
    Starting,
    Engines,
}

/// One attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trial {
    pub area: TrialArea,
    /// Never changes: `bpf-load`.
    pub id: &'static str,
    /// For people: `loading a program`.
    pub what: &'static str,
    pub outcome: Outcome,
    /// What was found, where it worked: `5.3 MiB`.
    pub detail: String,
    /// What vmaudit does without it.
    pub without: &'static str,
}

/// An object's programs, loaded as one command loads them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoadTrial {
    /// `run, attach`, `heap --combined`.
    pub command: &'static str,
    /// `heap`: bpf/OBJECT.bpf.c.
    pub object: &'static str,
    /// How probes are placed: `uprobe multi`. Empty where there are none.
    pub way: &'static str,
    pub programs: Vec<ProgramTrial>,
    /// What else was refused: a map, or the way. In words, and, where it was an object, with its refusal.
    pub failure: Option<(String, Option<Box<Refusal>>)>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramTrial {
    pub name: String,
    pub refusal: Option<Refusal>,
}

impl LoadTrial {
    pub fn works(&self) -> bool {
        self.failure.is_none() && self.programs.iter().all(|program| program.refusal.is_none())
    }

    /// The first thing that was refused, in words and as the kernel said it.
    pub fn refused(&self) -> Option<(String, Option<&Refusal>)> {
        let program = self.programs.iter().find_map(|program| program.refusal.as_ref());
        let of_program = program.map(|refusal| (refusal.to_string(), Some(refusal)));
        of_program.or_else(|| self.failure.as_ref().map(|(text, refusal)| (text.clone(), refusal.as_deref())))
    }
}

/// Capabilities that matter here, by their numbers in include/uapi/linux/capability.h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    DacReadSearch = 2,
    SysPtrace = 19,
    SysAdmin = 21,
    Perfmon = 38,
    Bpf = 39,
    CheckpointRestore = 40,
}

impl Capability {
    pub const ALL: [Capability; 6] = [
        Capability::Bpf,
        Capability::Perfmon,
        Capability::SysPtrace,
        Capability::SysAdmin,
        Capability::DacReadSearch,
        Capability::CheckpointRestore,
    ];

    /// As capabilities(7) has it.
    pub fn name(self) -> &'static str {
        match self {
            Capability::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
            Capability::CheckpointRestore => "CAP_CHECKPOINT_RESTORE",
        }
    }
}

/// A set of capabilities, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    pub fn has(self, capability: Capability) -> bool {
        self.0 >> (capability as u32) & 1 == 1
    }

    /// By name; CAP_SYS_ADMIN implies CAP_BPF and CAP_PERFMON, too (bpf_capable() and perfmon_capable(),
    /// include/linux/capability.h).
    pub fn allows(self, capability: Capability) -> bool {
        let admin =
            matches!(capability, Capability::Bpf | Capability::Perfmon | Capability::CheckpointRestore)
                && self.has(Capability::SysAdmin);
        self.has(capability) || admin
    }

    pub fn names(self) -> Vec<&'static str> {
        Capability::ALL.into_iter().filter(|&each| self.has(each)).map(Capability::name).collect()
    }
}

/// vmaudit's privileges on this machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Privileges {
    /// `6.18.44`.
    pub kernel: String,
    /// `x86_64`.
    pub arch: &'static str,
    /// The kernel shows its types (/sys/kernel/btf/vmlinux).
    pub btf: bool,
    /// Effective.
    pub uid: u32,
    /// Also those that the program's file lends for what it needs them for.
    pub effective: Capabilities,
    /// Those of the program's file that are not the user's own.
    pub lent: Capabilities,
    /// /proc shows nothing of vmaudit itself: whether a filter is in force is not known then, and nothing of other
    /// processes either.
    pub no_proc: bool,
    /// A seccomp filter is in force: a container's profile, as a rule.
    pub seccomp_filter: bool,
    pub no_new_privs: bool,
    /// In the first user namespace: capabilities are good for the whole machine.
    pub first_user_namespace: bool,
    /// In the first PID namespace: all processes are visible by their host numbers.
    pub first_pid_namespace: bool,
    /// kernel.perf_event_paranoid, where it can be read.
    pub perf_event_paranoid: Option<i32>,
    /// `none`, `integrity`, `confidentiality`, where securityfs shows it.
    pub lockdown: Option<String>,
    /// Programs may read the kernel's memory, tried; None where none can be loaded.
    pub reads_kernel_memory: Option<bool>,
    /// Path of this executable, for commands to copy.
    pub exe: String,
}
