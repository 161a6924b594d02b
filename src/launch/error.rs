//! Why a program could not be started, in words for the user, and with which exit code
//! vmaudit then ends.

use nix::errno::Errno;
use nix::sys::signal::Signal;

/// Exit code of vmaudit's own failures, as with env(1), nice(1) and timeout(1).
const OWN_FAILURE: u8 = 125;
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("no command was given")]
    NoCommand,
    #[error("{word:?} cannot be passed to a program: it contains a NUL byte")]
    NulByte { word: std::ffi::OsString },
    #[error("{command}: command not found")]
    NotFound { command: String },
    #[error("{command}: the file is there, but the interpreter that it names is not")]
    InterpreterMissing { command: String },
    #[error("{command}: {}", errno.desc())]
    CannotExecute { command: String, errno: Errno },
    #[error(
        "address randomisation cannot be switched off: personality(ADDR_NO_RANDOMIZE): {} ({errno:?}); \
         keep it on (--aslr keep){}", errno.desc(), personality_remedy(*errno)
    )]
    Personality { errno: Errno },
    #[error("cannot become user {user}: {step}: {}; --as-root starts the command as root", errno.desc())]
    ChangeUser { user: String, step: &'static str, errno: Errno },
    #[error(
        "seccomp user notification is refused: {} ({errno:?}); {}", errno.desc(), listener_remedy(*errno)
    )]
    ListenerRefused { errno: Errno },
    #[error(
        "watching calls through seccomp needs a listener, and there is none: {}",
        if *setuid { "the command is setuid, and would lose that: start it as root" }
        else { "leave --no-exit-hold out" }
    )]
    NoListener { setuid: bool },
    #[error("{0}")]
    Sudo(#[from] super::user::SudoError),
    #[error("{step}: {}", errno.desc())]
    System { step: &'static str, errno: Errno },
    #[error("the process that was to become the command died before it could start it")]
    ChildDied,
}

/// As clap's own errors.
const UNUSABLE: u8 = 2;

impl LaunchError {
    /// 127 when the command was not found, 126 when it could not be executed, 2 when the command line is
    /// wrong, else 125.
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::NotFound { .. } | LaunchError::InterpreterMissing { .. } => NOT_FOUND,
            LaunchError::CannotExecute { .. } => CANNOT_EXECUTE,
            LaunchError::NoListener { setuid: false } => UNUSABLE,
            _ => OWN_FAILURE,
        }
    }

    pub(super) fn system(step: &'static str) -> impl Fn(Errno) -> LaunchError {
        move |errno| LaunchError::System { step, errno }
    }
}

/// The kernel itself refuses no flag of personality(2).
fn personality_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM | Errno::ENOSYS => {
            ", or, where a container's seccomp profile forbids it, start the container with `--security-opt \
             seccomp=unconfined`"
        }
        _ => "",
    }
}

/// What would help where seccomp(2) gives no listener.
fn listener_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::EBUSY => {
            "another tracer or container runtime has a listener on this process tree already, and only one \
             can be: run outside of it, or use `vmaudit snapshot`"
        }
        Errno::EINVAL => "the kernel is older than 5.5: use `vmaudit snapshot`, or --backend bpf as root",
        Errno::EMFILE | Errno::ENFILE => {
            "no descriptor is left for the listener: `ulimit -n 4096`, or use `vmaudit snapshot`"
        }
        Errno::EPERM | Errno::EACCES | Errno::ENOSYS => {
            "a seccomp profile (a container's), a security module, or a kernel without seccomp(2) forbids it: start the \
             container with `--security-opt seccomp=unconfined`, or use `vmaudit snapshot`"
        }
        _ => "use `vmaudit snapshot`",
    }
}

/// What the user should know although the program runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LaunchNote {
    /// NO_NEW_PRIVS had to be set: setuid programs in the target do not gain privileges.
    NoNewPrivileges,
    /// No exit can be held.
    NoHold(NoHold),
    /// Before 5.19: a signal can restart a held exit, which is then seen twice.
    SignalsRestartHeldExits,
    /// A signal stopped vmaudit before it could start the command.
    NotStarted(Signal),
}

/// Why exits are not held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoHold {
    /// seccomp(2) refused the listener.
    Refused(Errno),
    /// The command is setuid or setgid, and NO_NEW_PRIVS would keep it from gaining privileges.
    SetuidCommand,
}

impl std::fmt::Display for LaunchNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LaunchNote::NoNewPrivileges => f.write_str(
                "without CAP_SYS_ADMIN the command runs with no_new_privs: setuid programs that it \
                 starts gain no privileges",
            ),
            LaunchNote::SignalsRestartHeldExits => {
                f.write_str("this kernel (before 5.19) may restart a held exit at a signal")
            }
            LaunchNote::NotStarted(signal) => {
                write!(f, "{signal} came before the command was started: it is not started")
            }
            LaunchNote::NoHold(reason) => {
                f.write_str("exits are not held, the newest snapshot is used as the final state: ")?;
                match reason {
                    NoHold::Refused(Errno::EBUSY) => {
                        f.write_str("another seccomp listener is in place (EBUSY)")
                    }
                    NoHold::Refused(errno) => write!(f, "seccomp: {} ({errno:?})", errno.desc()),
                    NoHold::SetuidCommand => {
                        f.write_str("the command is setuid, and without CAP_SYS_ADMIN it would lose that")
                    }
                }
            }
        }
    }
}

/// A call that failed while the target runs.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {}", errno.desc())]
pub struct TargetError {
    pub step: &'static str,
    pub errno: Errno,
}

impl TargetError {
    pub(super) fn at(step: &'static str) -> impl Fn(Errno) -> TargetError {
        move |errno| TargetError { step, errno }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_env_and_nice() {
        let command = String::from("x");
        assert_eq!(LaunchError::NotFound { command: command.clone() }.exit_code(), 127);
        assert_eq!(LaunchError::CannotExecute { command, errno: Errno::EACCES }.exit_code(), 126);
        assert_eq!(LaunchError::Personality { errno: Errno::EPERM }.exit_code(), 125);
        assert_eq!(LaunchError::ChildDied.exit_code(), 125);
    }

    #[test]
    fn messages_name_the_errno_and_the_remedy() {
        let text = LaunchError::Personality { errno: Errno::EPERM }.to_string();
        assert!(text.contains("EPERM") && text.contains("seccomp=unconfined"), "{text}");
        let text = LaunchNote::NoHold(NoHold::Refused(Errno::ENOSYS)).to_string();
        assert!(text.contains("ENOSYS"), "{text}");
    }
}
