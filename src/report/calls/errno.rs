//! Names and words of errors (include/uapi/asm-generic/errno*.h; the words are the C library's):
//! those that the traced calls can give.

/// `("ENOMEM", "Cannot allocate memory")` for 12.
pub fn errno(number: i64) -> Option<(&'static str, &'static str)> {
    Some(match number {
        1 => ("EPERM", "Operation not permitted"),
        2 => ("ENOENT", "No such file or directory"),
        3 => ("ESRCH", "No such process"),
        4 => ("EINTR", "Interrupted system call"),
        5 => ("EIO", "Input/output error"),
        6 => ("ENXIO", "No such device or address"),
        7 => ("E2BIG", "Argument list too long"),
        8 => ("ENOEXEC", "Exec format error"),
        9 => ("EBADF", "Bad file descriptor"),
        10 => ("ECHILD", "No child processes"),
        11 => ("EAGAIN", "Resource temporarily unavailable"),
        12 => ("ENOMEM", "Cannot allocate memory"),
        13 => ("EACCES", "Permission denied"),
        14 => ("EFAULT", "Bad address"),
        16 => ("EBUSY", "Device or resource busy"),
        17 => ("EEXIST", "File exists"),
        19 => ("ENODEV", "No such device"),
        20 => ("ENOTDIR", "Not a directory"),
        21 => ("EISDIR", "Is a directory"),
        22 => ("EINVAL", "Invalid argument"),
        23 => ("ENFILE", "Too many open files in system"),
        24 => ("EMFILE", "Too many open files"),
        26 => ("ETXTBSY", "Text file busy"),
        27 => ("EFBIG", "File too large"),
        28 => ("ENOSPC", "No space left on device"),
        34 => ("ERANGE", "Numerical result out of range"),
        35 => ("EDEADLK", "Resource deadlock avoided"),
        38 => ("ENOSYS", "Function not implemented"),
        40 => ("ELOOP", "Too many levels of symbolic links"),
        43 => ("EIDRM", "Identifier removed"),
        75 => ("EOVERFLOW", "Value too large for defined data type"),
        95 => ("EOPNOTSUPP", "Operation not supported"),
        133 => ("EHWPOISON", "Memory page has hardware error"),
        512 => ("ERESTARTSYS", "To be restarted if SA_RESTART is set"),
        513 => ("ERESTARTNOINTR", "To be restarted"),
        514 => ("ERESTARTNOHAND", "To be restarted if no handler"),
        516 => ("ERESTART_RESTARTBLOCK", "Interrupted by signal"),
        // MAX_ERRNO, which no call gives: what the notify backend says of a call without effect.
        4095 => ("E?", "Refused; the reason cannot be seen"),
        _ => return None,
    })
}
