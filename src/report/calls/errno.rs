//! Names and words of errors (the words are the C library's): those that the traced calls can give.

use crate::sys::abi;

macro_rules! errors {
    ($($name:ident: $words:literal)*) => { &[$((abi::$name, stringify!($name), $words)),*] };
}

const ERRORS: &[(i32, &str, &str)] = errors! {
    EPERM: "Operation not permitted"
    ENOENT: "No such file or directory"
    ESRCH: "No such process"
    EINTR: "Interrupted system call"
    EIO: "Input/output error"
    ENXIO: "No such device or address"
    E2BIG: "Argument list too long"
    ENOEXEC: "Exec format error"
    EBADF: "Bad file descriptor"
    ECHILD: "No child processes"
    EAGAIN: "Resource temporarily unavailable"
    ENOMEM: "Cannot allocate memory"
    EACCES: "Permission denied"
    EFAULT: "Bad address"
    EBUSY: "Device or resource busy"
    EEXIST: "File exists"
    ENODEV: "No such device"
    ENOTDIR: "Not a directory"
    EISDIR: "Is a directory"
    EINVAL: "Invalid argument"
    ENFILE: "Too many open files in system"
    EMFILE: "Too many open files"
    ETXTBSY: "Text file busy"
    EFBIG: "File too large"
    ENOSPC: "No space left on device"
    ERANGE: "Numerical result out of range"
    EDEADLK: "Resource deadlock avoided"
    ENOSYS: "Function not implemented"
    ELOOP: "Too many levels of symbolic links"
    EIDRM: "Identifier removed"
    EOVERFLOW: "Value too large for defined data type"
    EOPNOTSUPP: "Operation not supported"
    EHWPOISON: "Memory page has hardware error"
};

/// `("ENOMEM", "Cannot allocate memory")` for 12.
pub fn errno(number: i64) -> Option<(&'static str, &'static str)> {
    // Not for user space (include/linux/errno.h), but seen at the exit of a call that a signal interrupts.
    Some(match number {
        512 => ("ERESTARTSYS", "To be restarted if SA_RESTART is set"),
        513 => ("ERESTARTNOINTR", "To be restarted"),
        514 => ("ERESTARTNOHAND", "To be restarted if no handler"),
        516 => ("ERESTART_RESTARTBLOCK", "Interrupted by signal"),
        // MAX_ERRNO, which no call gives: what the notify backend says of a call without effect.
        4095 => ("E?", "Refused; the reason cannot be seen"),
        _ => {
            let (_, name, words) = ERRORS.iter().find(|(known, ..)| i64::from(*known) == number)?;
            (name, words)
        }
    })
}
