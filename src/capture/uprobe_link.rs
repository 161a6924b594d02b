//! Links of uprobes: system calls on descriptors, and nothing of libbpf's, so that any thread can make them.

use crate::model::Pid;
use crate::sys::perf;
use libbpf_rs::libbpf_sys;
use nix::errno::Errno;
use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A function of a file: its offset there, the cookie that its program gets, and whether its return is probed.
pub(in crate::capture) type Site = (u64, u64, bool);

/// How functions are probed, by what the kernel can do.
#[derive(Debug)]
pub(in crate::capture) enum Way {
    /// Linux 6.13: entry and return of many functions at once, the return only where requested.
    Session(OwnedFd),
    /// Linux 6.6: entries of many functions at once, and returns.
    Multi { entries: OwnedFd, returns: Option<OwnedFd> },
    /// One by one.
    Single { entry: OwnedFd, leave: Option<OwnedFd>, kind: PerfUprobe },
}

/// As /sys/bus/event_source/devices/uprobe has it.
#[derive(Clone, Copy, Debug)]
pub(in crate::capture) struct PerfUprobe {
    pub kind: u32,
    /// The bit of `config` that makes it a return probe.
    pub return_bit: u32,
}

/// Why functions of a file are not probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("placing probes (BPF_LINK_CREATE): {0}")]
    Link(#[source] io::Error),
    #[error("placing a probe (perf_event_open): {0}")]
    Perf(#[source] io::Error),
    #[error("writing what a function does to the kernel's side: {0}")]
    Table(#[source] io::Error),
    #[error("more than {0} functions to probe")]
    TooMany(u32),
}

impl Way {
    pub(in crate::capture) fn try_clone(&self) -> io::Result<Way> {
        let copy = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        Ok(match self {
            Way::Session(program) => Way::Session(program.try_clone()?),
            Way::Multi { entries, returns } => {
                Way::Multi { entries: entries.try_clone()?, returns: copy(returns)? }
            }
            Way::Single { entry, leave, kind } => {
                Way::Single { entry: entry.try_clone()?, leave: copy(leave)?, kind: *kind }
            }
        })
    }

    /// Whether the kernel knows this way: it refuses a folder after everything else was to its liking.
    pub(in crate::capture) fn try_out(&self) -> io::Result<()> {
        let (program, attach) = match self {
            Way::Session(program) => (program, Attach::Session),
            Way::Multi { entries, .. } => (entries, Attach::Entry),
            Way::Single { .. } => return Ok(()),
        };
        let request = Many { program: program.as_raw_fd(), path: &c"/".into(), pid: None, attach };
        match request.link(&[(4096, 0, true)]) {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Probes all, or none.
    pub(in crate::capture) fn link(
        &self,
        path: &CString,
        all: &[Site],
        pid: Option<Pid>,
    ) -> Result<Vec<OwnedFd>, ProbeError> {
        let many = |program: &OwnedFd, functions: &[Site], attach: Attach| {
            let request = Many { program: program.as_raw_fd(), path, pid, attach };
            request.link(functions).map_err(ProbeError::Link)
        };
        match self {
            Way::Session(program) => Ok(vec![many(program, all, Attach::Session)?]),
            Way::Multi { entries, returns } => {
                let with_return: Vec<_> = all.iter().copied().filter(|&(_, _, returns)| returns).collect();
                let mut links = Vec::with_capacity(2);
                // Returns first: an entry without its return would wait for it.
                if let Some(returns) = returns.as_ref().filter(|_| !with_return.is_empty()) {
                    links.push(many(returns, &with_return, Attach::Return)?);
                }
                links.push(many(entries, all, Attach::Entry)?);
                Ok(links)
            }
            Way::Single { entry, leave, kind } => {
                let mut links = Vec::new();
                for &(offset, cookie, returns) in all {
                    let single = Single { path, offset, cookie, kind: *kind, pid };
                    if let Some(leave) = leave.as_ref().filter(|_| returns) {
                        links.push(single.link(leave.as_raw_fd(), true)?);
                    }
                    links.push(single.link(entry.as_raw_fd(), false)?);
                }
                Ok(links)
            }
        }
    }
}

impl ProbeError {
    /// What the kernel answered.
    pub(in crate::capture) fn errno(&self) -> Option<Errno> {
        match self {
            ProbeError::Link(source) | ProbeError::Perf(source) | ProbeError::Table(source) => {
                source.raw_os_error().map(Errno::from_raw)
            }
            ProbeError::TooMany(_) => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::capture) enum Attach {
    Session,
    Entry,
    Return,
}

/// BPF_LINK_CREATE of a uprobe_multi link.
pub(in crate::capture) struct Many<'a> {
    pub program: RawFd,
    pub path: &'a CString,
    pub pid: Option<Pid>,
    pub attach: Attach,
}

impl Many<'_> {
    /// Functions: file offset, cookie; whether their return is probed depends on `attach`.
    pub(in crate::capture) fn link(&self, functions: &[Site]) -> io::Result<OwnedFd> {
        let offsets: Vec<libc::c_ulong> = functions.iter().map(|&(offset, _, _)| offset).collect();
        let cookies: Vec<u64> = functions.iter().map(|&(_, cookie, _)| cookie).collect();
        let mut options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        options.__bindgen_anon_1.uprobe_multi =
            libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
                flags: if self.attach == Attach::Return { libbpf_sys::BPF_F_UPROBE_MULTI_RETURN } else { 0 },
                cnt: functions.len() as u32,
                path: self.path.as_ptr(),
                offsets: offsets.as_ptr(),
                cookies: cookies.as_ptr(),
                pid: self.pid.map_or(0, |pid| pid as u32),
                ..Default::default()
            };
        let kind = match self.attach {
            Attach::Session => libbpf_sys::BPF_TRACE_UPROBE_SESSION,
            _ => libbpf_sys::BPF_TRACE_UPROBE_MULTI,
        };
        // SAFETY: the options and the arrays that they point to have the lengths stated and outlive
        // the call; the program's descriptor is open.
        owned(unsafe { libbpf_sys::bpf_link_create(self.program, 0, kind, &raw const options) })
    }
}

/// One probe as a perf event.
pub(in crate::capture) struct Single<'a> {
    pub path: &'a CString,
    pub offset: u64,
    pub cookie: u64,
    pub kind: PerfUprobe,
    pub pid: Option<Pid>,
}

impl Single<'_> {
    pub(in crate::capture) fn link(&self, program: RawFd, returns: bool) -> Result<OwnedFd, ProbeError> {
        let mut attr = perf::uprobe(self.kind.kind, self.path, self.offset);
        attr.config = u64::from(returns) << self.kind.return_bit;
        // All CPUs of one process, or, through one CPU's event, everybody.
        let (pid, cpu) = self.pid.map_or((-1, 0), |pid| (pid, -1));
        let event = perf::open(&attr, pid, cpu).map_err(|errno| ProbeError::Perf(errno.into()))?;
        let mut options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        options.__bindgen_anon_1.perf_event =
            libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_1 { bpf_cookie: self.cookie };
        // SAFETY: the options outlive the call, both descriptors are open. The link keeps the event.
        let link = unsafe {
            libbpf_sys::bpf_link_create(
                program,
                event.as_raw_fd(),
                libbpf_sys::BPF_PERF_EVENT,
                &raw const options,
            )
        };
        owned(link).map_err(ProbeError::Link)
    }
}

/// A new descriptor, or -errno.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl PerfUprobe {
    /// What sysfs says; None where there is no sysfs or no uprobes.
    pub(in crate::capture) fn find() -> Option<PerfUprobe> {
        let read = |name: &str| std::fs::read_to_string(format!("{UPROBE}/{name}")).ok();
        let kind = read("type")?.trim().parse().ok()?;
        let bit = read("format/retprobe")?.trim().strip_prefix("config:")?.parse().ok()?;
        Some(PerfUprobe { kind, return_bit: bit })
    }
}

const UPROBE: &str = "/sys/bus/event_source/devices/uprobe";
