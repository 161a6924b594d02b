//! Where programs are attached, by what the kernel does to programs there: the one table of it.
//!
//! A program must not be preempted while it is in flight: the kernel skips it then for every other task
//! that comes along on that CPU. (Programs of uprobes are preempted everywhere: bpf/preempt.h.)

use super::skel::VmauditSkel;
use super::{attach_error, tracepoints};
use crate::capture::{CaptureError, arch};
use crate::sys::kernel::version;
use libbpf_rs::{Link, ProgramMut};
use std::os::fd::IntoRawFd;

/// How system calls are seen when they return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::capture) enum CallHook {
    /// Their tracepoints (`syscalls/sys_exit_mmap`), by perf events. Costs no other call anything.
    Tracepoints,
    /// The return of the kernel's own functions (`__x64_sys_mmap`). Needs CONFIG_FPROBE.
    Returns,
    /// The tracepoint of all calls. Costs every call on the machine more; needs no tracefs.
    RawExit,
}

/// What is true of kernels from a version on.
struct Hooks {
    since: (u32, u32),
    /// In the order in which they are tried.
    calls: &'static [CallHook],
    /// Tracepoints of tasks are preempted: two spare programs each take the place of one that is in
    /// flight (bpf/tasks.h).
    spares: bool,
}

const TABLE: &[Hooks] = &[
    // perf runs the programs of system call tracepoints with preemption on: kernel/trace/bpf_trace.c,
    // trace_call_bpf_faultable().
    Hooks {
        since: (7, 2),
        calls: &[CallHook::Returns, CallHook::Tracepoints, CallHook::RawExit],
        spares: true,
    },
    // Tracepoints are guarded by SRCU instead of by disabling preemption: include/linux/tracepoint.h.
    Hooks { since: (7, 0), calls: &[CallHook::Tracepoints, CallHook::RawExit], spares: true },
    Hooks { since: (0, 0), calls: &[CallHook::Tracepoints, CallHook::RawExit], spares: false },
];

/// As the running kernel needs them.
fn hooks() -> &'static Hooks {
    let version = version();
    TABLE.iter().find(|hooks| version >= hooks.since).unwrap_or(&TABLE[TABLE.len() - 1])
}

pub(in crate::capture) fn call_hooks() -> &'static [CallHook] {
    hooks().calls
}

pub(in crate::capture) fn needs_spares() -> bool {
    hooks().spares
}

/// Attaches what sees the calls; also says what that is, for `-v`.
pub(super) fn attach_calls(
    skel: &VmauditSkel<'_>,
    hook: CallHook,
    ids: &[(&'static str, u64)],
) -> Result<(Vec<Link>, String), CaptureError> {
    match hook {
        CallHook::Tracepoints => {
            let links = ids.iter().map(|&(name, id)| attach_tracepoint(&skel.progs.syscall_exit, name, id));
            Ok((links.collect::<Result<_, _>>()?, format!("{} syscall tracepoints", ids.len())))
        }
        CallHook::Returns => {
            let known = |name: &str| ids.is_empty() || ids.iter().any(|(known, _)| *known == name);
            let calls: Vec<&str> =
                arch::TRACED.iter().map(|call| call.name).filter(|name| known(name)).collect();
            let (links, calls) = attach_functions(&skel.progs.syscall_returned, Moment::Return, &calls)?;
            Ok((links, format!("the return of {calls} system calls")))
        }
        CallHook::RawExit => {
            let link = attach_trace(&skel.progs.any_syscall_exit)?;
            Ok((vec![link], "raw sys_exit (no tracefs)".to_owned()))
        }
    }
}

fn attach_tracepoint(program: &ProgramMut<'_>, name: &str, id: u64) -> Result<Link, CaptureError> {
    let what = || format!("sys_exit_{name}");
    let event =
        tracepoints::open_event(id).map_err(|source| CaptureError::Tracepoint { what: what(), source })?;
    // libbpf's link owns the descriptor from here on.
    let fd = event.into_raw_fd();
    let link =
        program.attach_perf_event(fd).map_err(|source| CaptureError::Attach { what: what(), source })?;
    tracepoints::leave_program_only(fd);
    Ok(link)
}

/// When a program runs on a function of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::capture) enum Moment {
    Entry,
    Return,
}

/// Attaches to the kernel's functions for these system calls: all at once; where that is refused because the
/// kernel was built without one of them, one by one. Also returns how many there are.
pub(in crate::capture) fn attach_functions(
    program: &ProgramMut<'_>,
    moment: Moment,
    calls: &[&str],
) -> Result<(Vec<Link>, usize), CaptureError> {
    let names: Vec<String> = calls.iter().map(|call| format!("{}{call}", arch::SYSCALL_PREFIX)).collect();
    let at_return = moment == Moment::Return;
    let refused = match program.attach_kprobe_multi(at_return, names.clone()) {
        Ok(link) => return Ok((vec![link], names.len())),
        Err(source) => CaptureError::Attach { what: names.join(", "), source },
    };
    let one = |name: &String| program.attach_kprobe_multi(at_return, vec![name]).ok();
    let links: Vec<Option<Link>> = names.iter().map(one).collect();
    let missing = |(call, link): (&&str, &Option<Link>)| {
        link.is_none() && arch::TRACED.iter().take(arch::IN_EVERY_KERNEL).any(|traced| traced.name == *call)
    };
    if calls.iter().zip(&links).any(missing) {
        return Err(refused);
    }
    let links: Vec<Link> = links.into_iter().flatten().collect();
    let calls = links.len();
    Ok((links, calls))
}

pub(in crate::capture) fn attach_trace(program: &ProgramMut<'_>) -> Result<Link, CaptureError> {
    program.attach_trace().map_err(|source| attach_error(program.name(), source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_ends_with_every_kernel() {
        assert!(TABLE.windows(2).all(|pair| pair[0].since > pair[1].since));
        assert_eq!(TABLE.last().map(|hooks| hooks.since), Some((0, 0)));
        assert!(TABLE.iter().all(|hooks| hooks.calls.last() == Some(&CallHook::RawExit)));
    }
}
