//! The way to vmaudit: a connected socket, over which the memory file comes. Nobody else is believed: a socket that has a name
//! is used only where root or the process' own user listens.

use super::area::{Hello, SOCKET_PATH};
use super::sys::{call, close};

const SOCKET: usize = 41;
const CONNECT: usize = 42;
const SENDTO: usize = 44;
const RECVFROM: usize = 45;
const RECVMSG: usize = 47;
const SOCKETPAIR: usize = 53;
const SETSOCKOPT: usize = 54;
const GETSOCKOPT: usize = 55;
const GETUID: usize = 102;
const GETEUID: usize = 107;

const AF_UNIX: usize = 1;
const SOCK_SEQPACKET: usize = 5;
const SOCK_CLOEXEC: usize = 0o2_000_000;
const SOL_SOCKET: usize = 1;
const SCM_RIGHTS: i32 = 1;
const SO_PEERCRED: usize = 17;
const SO_RCVTIMEO: usize = 20;
const SO_SNDTIMEO: usize = 21;
const MSG_PEEK: usize = 2;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const EINTR: isize = -4;

/// A living vmaudit answers immediately.
const PATIENCE: [u64; 2] = [2, 0];
/// How long [`wait`] waits: microseconds.
const GLANCE: [u64; 2] = [0, 100_000];

#[repr(C)]
struct Name {
    family: u16,
    path: [u8; 108],
}

#[repr(C)]
struct Message {
    name: usize,
    name_len: usize,
    parts: *mut Part,
    part_count: usize,
    control: *mut Control,
    control_len: usize,
    flags: usize,
}

#[repr(C)]
struct Part {
    base: *mut u8,
    len: usize,
}

#[repr(C)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; 2],
}

fn patient(fd: isize, time: [u64; 2]) -> isize {
    for option in [SO_RCVTIMEO, SO_SNDTIMEO] {
        let at = time.as_ptr() as usize;
        unsafe { call(SETSOCKOPT, fd as usize, SOL_SOCKET, option, at, size_of_val(&time), 0) };
    }
    fd
}

/// Connects to a socket that root listens at, or the user that the process runs as. None where nobody does, or somebody else.
pub fn connect(path: &[u8; SOCKET_PATH]) -> Option<isize> {
    let mut name = Name { family: AF_UNIX as u16, path: [0; 108] };
    name.path[..SOCKET_PATH].copy_from_slice(path);
    let fd = unsafe { call(SOCKET, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, 0, 0, 0) };
    if fd < 0 {
        return None;
    }
    let (fd, to) = (patient(fd, PATIENCE), &raw const name as usize);
    let connected = unsafe { call(CONNECT, fd as usize, to, size_of::<Name>(), 0, 0, 0) } == 0;
    if connected && is_trusted(fd) {
        return Some(fd);
    }
    close(fd);
    None
}

/// Whether who listens may do with this process what it likes anyway.
fn is_trusted(fd: isize) -> bool {
    // struct ucred: the process, its user, its group.
    let mut who = [0u32; 3];
    let mut len = size_of_val(&who) as u32;
    let (to, len_at) = (who.as_mut_ptr() as usize, &raw mut len as usize);
    let got = unsafe { call(GETSOCKOPT, fd as usize, SOL_SOCKET, SO_PEERCRED, to, len_at, 0) };
    let own = |number: usize| unsafe { call(number, 0, 0, 0, 0, 0, 0) } as u32;
    got == 0
        && len as usize == size_of_val(&who)
        && (who[1] == 0 || who[1] == own(GETEUID) && who[1] == own(GETUID))
}

/// Two ends of a connection that has no name.
pub fn pair() -> Option<[isize; 2]> {
    let mut fds = [0i32; 2];
    let at = fds.as_mut_ptr() as usize;
    match unsafe { call(SOCKETPAIR, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, at, 0, 0) } {
        0 => Some([patient(fds[0] as isize, GLANCE), fds[1] as isize]),
        _ => None,
    }
}

/// Says who is there. False where nobody takes it.
pub fn greet(fd: isize, hello: &Hello) -> bool {
    let (at, len) = (&raw const *hello as usize, size_of::<Hello>());
    unsafe { call(SENDTO, fd as usize, at, len, MSG_NOSIGNAL, 0, 0) == len as isize }
}

/// Whether something comes soon, which stays to be received.
pub fn wait(fd: isize) -> bool {
    let mut byte = 0u8;
    loop {
        let (at, flags) = (&raw mut byte as usize, MSG_PEEK);
        match unsafe { call(RECVFROM, fd as usize, at, 1, flags, 0, 0) } {
            EINTR => {}
            got => return got > 0,
        }
    }
}

/// The two descriptors that come with an answer. None where there is none in time.
pub fn receive(fd: isize) -> Option<[isize; 2]> {
    let mut answer = [0u8; 8];
    let mut part = Part { base: answer.as_mut_ptr(), len: answer.len() };
    let mut control = Control { len: 0, level: 0, kind: 0, fds: [-1; 2] };
    let mut message = Message {
        name: 0,
        name_len: 0,
        parts: &mut part,
        part_count: 1,
        control: &mut control,
        control_len: size_of::<Control>(),
        flags: 0,
    };
    let at = &raw mut message as usize;
    let got = loop {
        let got = unsafe { call(RECVMSG, fd as usize, at, MSG_CMSG_CLOEXEC, 0, 0, 0) };
        if got != EINTR {
            break got;
        }
    };
    let fds = control.fds.map(|fd| fd as isize);
    if got > 0
        && control.len == size_of::<Control>()
        && control.level == SOL_SOCKET as i32
        && control.kind == SCM_RIGHTS
    {
        return Some(fds);
    }
    fds.into_iter().filter(|&fd| fd >= 0).for_each(close);
    None
}
