//! What the kernel said to a BPF object that it did not take.

use std::fmt;
use std::io;

/// Why the programs of an object are not there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Refusal {
    /// `vmaudit`, `heap`, `probe`: bpf/OBJECT.bpf.c.
    pub object: String,
    pub part: Part,
    /// None where libbpf gave up by itself.
    pub errno: Option<i32>,
    pub missing: Option<Missing>,
    /// The verifier's last lines, in their order; none where it was not run.
    pub verifier: Vec<String>,
}

/// What of the object was refused.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Part {
    Program(String),
    Map(String),
    /// Not even a program of two instructions can be loaded.
    Everything,
    /// It is not known which.
    #[default]
    Unknown,
}

/// What the kernel does not have, or does not give to this program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Missing {
    /// `bpf_probe_read_kernel`.
    Helper(String),
    /// `bpf_iter_task_vma_new`.
    Kfunc(String),
    /// A type or a field, as libbpf names it: `struct mm_struct.brk`.
    Type(String),
    /// Where the program is to be attached: `sched_process_fork`.
    Target(String),
    /// The kernel's types altogether.
    Btf,
}

impl Missing {
    /// As the kernel, or libbpf, calls it.
    pub fn name(&self) -> &str {
        match self {
            Missing::Helper(name) | Missing::Kfunc(name) | Missing::Type(name) | Missing::Target(name) => {
                name
            }
            Missing::Btf => "BTF",
        }
    }
}

impl Refusal {
    /// The verifier rejected the program: not a question of privileges.
    pub fn is_verdict(&self) -> bool {
        !self.verifier.is_empty() || self.missing.is_some()
    }

    /// What the verifier found, in its words.
    pub fn verdict(&self) -> Option<&str> {
        // `processed 931 insns (limit 1000000) …` ends every log.
        let words = self.verifier.iter().rev().find(|line| !line.starts_with("processed "));
        words.map(String::as_str)
    }

    /// The program, as a sentence begins with it.
    pub fn subject(&self) -> String {
        match &self.part {
            Part::Program(name) => format!("the program {name}"),
            Part::Map(name) => format!("the map {name}"),
            Part::Everything | Part::Unknown => format!("{}.bpf.o", self.object),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            Part::Program(name) => write!(f, "the kernel refused the BPF program {name}")?,
            Part::Map(name) => write!(f, "the kernel refused the BPF map {name}")?,
            Part::Everything => f.write_str("the kernel refuses any BPF program")?,
            Part::Unknown => write!(f, "loading the BPF programs of {}.bpf.o failed", self.object)?,
        }
        match self.errno {
            Some(errno) => write!(f, ": {}", io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}
