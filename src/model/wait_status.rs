//! How a process ended, as wait(2) has it: exit code << 8 | signal. Below 0 where only its end is known.

/// The exit code of one that exited by itself.
pub fn exit_code(status: i32) -> Option<i32> {
    (status >= 0 && status & 0x7f == 0).then_some(status >> 8 & 0xff)
}

/// The signal that killed it.
pub fn signal(status: i32) -> Option<i32> {
    (status >= 0 && status & 0x7f != 0).then_some(status & 0x7f)
}
