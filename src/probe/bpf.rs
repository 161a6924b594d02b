//! bpf(2): maps, programs, and what programs can be attached to.

use super::child::in_child;
use super::perf::open;
use super::{Failure, Subject, tracefs};
use crate::model::{Trial, TrialArea};
use crate::sys::lockdown;
use crate::sys::perf;
use crate::sys::tracefs::mount_privately;
use libbpf_rs::libbpf_sys as sys;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statvfs::statvfs;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub fn trials() -> Vec<Trial> {
    let subject = |id, what, without| Subject { area: TrialArea::Bpf, id, what, without };
    let no_backend = "no bpf backend";
    vec![
        subject("bpf-load", "loading a program", no_backend)
            .came_out(load(sys::BPF_PROG_TYPE_RAW_TRACEPOINT, 0).map(|_| String::new())),
        subject("bpf-ringbuf", "ring buffer", no_backend).came_out(ring_buffer().map(|_| String::new())),
        subject("bpf-read-kernel", "a program that reads kernel memory", no_backend)
            .came_out(kernel_memory()),
        subject("btf", "the kernel's types (BTF)", no_backend).came_out(btf()),
        subject("bpf-raw-tracepoint", "raw tracepoint", no_backend).came_out(raw_tracepoint()),
        subject(
            "tracefs",
            "tracepoint numbers (tracefs)",
            "each call on the machine costs some 50 ns more while a trace is on",
        )
        .came_out(tracefs()),
        subject("bpf-uprobe", "uprobe, by a perf event", "functions of programs cannot be probed this way")
            .came_out(uprobe()),
        subject("bpf-uprobe-multi", "uprobe multi link", "functions of programs cannot be probed this way")
            .came_out(uprobe_multi()),
        subject("lockdown", "kernel lockdown", "").reads(lockdown_mode()),
    ]
}

/// The result of a libbpf call: a descriptor, or a negative errno (libbpf 1.0 and later).
fn descriptor(result: i32) -> Result<OwnedFd, Failure> {
    if result < 0 {
        return Err(Errno::from_raw(-result).into());
    }
    // SAFETY: libbpf returned a new descriptor owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// A program that returns 0.
fn load(kind: sys::bpf_prog_type, attach: sys::bpf_attach_type) -> Result<OwnedFd, Failure> {
    const MOV64_IMM: u8 = 0xb7;
    const EXIT: u8 = 0x95;
    let instruction = |code| sys::bpf_insn { code, ..Default::default() };
    let program = [instruction(MOV64_IMM), instruction(EXIT)];
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
        expected_attach_type: attach,
        ..Default::default()
    };
    // SAFETY: names and program are valid for the call, which copies them; their lengths are right.
    descriptor(unsafe {
        sys::bpf_prog_load(
            kind,
            c"vmaudit_doctor".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            program.as_ptr(),
            program.len() as sys::size_t,
            &raw mut options,
        )
    })
}

fn ring_buffer() -> Result<OwnedFd, Failure> {
    // SAFETY: the name is valid for the call; null means no options.
    descriptor(unsafe {
        sys::bpf_map_create(
            sys::BPF_MAP_TYPE_RINGBUF,
            c"vmaudit_doctor".as_ptr(),
            0,
            0,
            4096,
            std::ptr::null(),
        )
    })
}

fn raw_tracepoint() -> Result<String, Failure> {
    let program = load(sys::BPF_PROG_TYPE_RAW_TRACEPOINT, 0)?;
    // SAFETY: the name is valid for the call, the descriptor a program's.
    descriptor(unsafe { sys::bpf_raw_tracepoint_open(c"sched_process_exit".as_ptr(), program.as_raw_fd()) })?;
    Ok(String::new())
}

fn btf() -> Result<String, Failure> {
    const PATH: &str = "/sys/kernel/btf/vmlinux";
    const MAGIC: [u8; 2] = 0xeb9f_u16.to_ne_bytes();
    let mut file = File::open(PATH)?;
    let mut magic = [0; 2];
    file.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(Failure::Absent(format!("{PATH} is not BTF")));
    }
    let bytes = file.metadata()?.len();
    Ok(format!("{PATH}, {:.1} MiB", bytes as f64 / f64::from(1 << 20)))
}

/// Where tracefs is not mounted, a child mounts it in a mount namespace of its own, as the bpf
/// backend does.
fn tracefs() -> Result<String, Failure> {
    const TRACEPOINT: &str = "syscalls/sys_exit_mmap";
    match tracefs::id(TRACEPOINT) {
        Ok((root, number)) => Ok(format!("{root}, sys_exit_mmap is {number}")),
        Err(Failure::Absent(_)) if !lockdown::tracefs_may_be_mounted() => Err(Failure::Absent(
            "locked down (confidentiality): the kernel has switched tracing off".to_owned(),
        )),
        Err(Failure::Absent(_)) => in_child(|| {
            mount_privately()?;
            let (_, number) = tracefs::id(TRACEPOINT).map_err(|_| Errno::ENOENT)?;
            Ok(format!("in a private mount, sys_exit_mmap is {number}"))
        }),
        Err(failure) => Err(failure),
    }
}

/// A file of NOPs that no process maps: a uprobe on it changes none.
fn nobodys_code() -> Result<(OwnedFd, CString), Failure> {
    let file = memfd_create(c"vmaudit-doctor", MFdFlags::MFD_CLOEXEC)?;
    nix::unistd::write(&file, &[0x90; 64])?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, path.unwrap_or_default()))
}

fn uprobe() -> Result<String, Failure> {
    const TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
    let kind = std::fs::read_to_string(TYPE)?;
    let kind = kind.trim().parse().map_err(|_| Failure::Absent(format!("{TYPE} has no number")))?;
    let (_file, path) = nobodys_code()?;
    open(perf::uprobe(kind, &path, 0), 0)?;
    Ok(String::new())
}

fn uprobe_multi() -> Result<String, Failure> {
    let program = load(sys::BPF_PROG_TYPE_KPROBE, sys::BPF_TRACE_UPROBE_MULTI)?;
    let (_file, path) = nobodys_code()?;
    let offsets = [0];
    let mut options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
        ..Default::default()
    };
    options.__bindgen_anon_1.uprobe_multi = sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
        cnt: offsets.len() as u32,
        path: path.as_ptr(),
        offsets: offsets.as_ptr(),
        pid: std::process::id(),
        ..Default::default()
    };
    // SAFETY: path and offsets are valid for the call; the descriptor is a program's.
    descriptor(unsafe {
        sys::bpf_link_create(program.as_raw_fd(), 0, sys::BPF_TRACE_UPROBE_MULTI, &raw const options)
    })?;
    Ok(String::new())
}

/// As securityfs shows it, where that is mounted.
fn lockdown_mode() -> Result<String, Failure> {
    const FOLDER: &CStr = c"/sys/kernel/security";
    match lockdown::mode() {
        Ok(mode) => Ok(mode),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let empty = statvfs(FOLDER).is_ok_and(|fs| fs.files() == 0);
            let why = if empty { "no securityfs" } else { "securityfs is not mounted, or has none" };
            Err(Failure::Absent(why.to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

/// A program that calls bpf_probe_read_kernel.
fn kernel_memory() -> Result<String, Failure> {
    match lockdown::programs_read_kernel_memory() {
        Some(true) => Ok(String::new()),
        Some(false) => Err(Errno::EINVAL.into()),
        None => Err(Failure::Absent("no program can be loaded".to_owned())),
    }
}
