//! Where programs that are started with the library find vmaudit: a socket without a name in any file system.
//!
//! Its file is made in a folder of one's own and removed at once; what is left is a descriptor (O_PATH), and a path below
//! `/proc/PID/fd` leads only those to it who may inspect vmaudit, or have inherited it. Each side asks the kernel who the other
//! one is (SO_PEERCRED), and a process has to know what only the command's environment says.

use super::layout::TOKEN;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open, openat};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
use nix::unistd::{UnlinkatFlags, mkdtemp, unlinkat};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A listening socket, and what leads to it.
pub struct Endpoint {
    socket: OwnedFd,
    node: OwnedFd,
    token: String,
}

/// Where a folder may be made for a moment.
const FOLDERS: [&str; 4] = ["/tmp", "/run", "/dev/shm", "/var/tmp"];

impl Endpoint {
    /// # Errors
    /// When there can be no socket, or no folder for it.
    pub fn new() -> io::Result<Endpoint> {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        let node = bound(&socket)?;
        listen(&socket, Backlog::MAXCONN)?;
        let mut bytes = [0; TOKEN / 2];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let token = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Endpoint { socket, node, token })
    }

    /// What the environment of a command says. Where the command may not inspect vmaudit, because it runs as another user, it
    /// inherits the descriptor.
    ///
    /// # Errors
    /// When the descriptor cannot be left open over execve.
    pub fn variable(&self, same_user: bool) -> io::Result<OsString> {
        let number = self.node.as_raw_fd();
        let whose = if same_user { std::process::id().to_string() } else { "self".to_owned() };
        if !same_user {
            fcntl(&self.node, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(format!("{}:/proc/{whose}/fd/{number}", self.token).into())
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether these are the digits that the environment of the command has.
    pub fn knows(&self, token: &[u8; TOKEN]) -> bool {
        self.token.as_bytes() == token
    }
}

/// Gives the socket a file for a moment; a descriptor of that.
fn bound(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for folder in FOLDERS {
        let template = Path::new(folder).join("vmaudit-XXXXXX");
        match mkdtemp(&template) {
            Ok(own) => {
                let node = bound_in(socket, &own);
                // It is empty, unless it was somebody else's.
                let _ = std::fs::remove_dir(&own);
                return node;
            }
            Err(errno) => last = errno.into(),
        }
    }
    Err(last)
}

fn bound_in(socket: &OwnedFd, folder: &Path) -> io::Result<OwnedFd> {
    const NAME: &str = "s";
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = open(folder, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{NAME}", folder.as_raw_fd());
    bind(socket.as_raw_fd(), &UnixAddr::new(Path::new(&path))?)?;
    let node = openat(&folder, NAME, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty());
    // Who has the descriptor may connect, whoever that is.
    let all = Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IRWXO;
    let opened = fchmodat(&folder, NAME, all, FchmodatFlags::FollowSymlink);
    unlinkat(&folder, NAME, UnlinkatFlags::NoRemoveDir)?;
    opened?;
    Ok(node?)
}
