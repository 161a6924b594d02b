//! What unwinding starts from, and the simplest of the rules that it goes by.

/// Bytes of each stack that are copied, by default.
pub const STACK_BYTES: u64 = 65_536;
/// Bytes between kernel and vmaudit that stacks may fill, and that there are for calls without them then.
pub const RING_BYTES: u32 = 28 << 20;
pub const SPILL_BYTES: u32 = 4 << 20;
/// Bytes of what was read and not handled yet.
pub const QUEUE_BYTES: u32 = 96 << 20;

/// Registers and the stack's bytes above `sp`, as they were at an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct StackSample<'a> {
    /// After the syscall instruction.
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    pub bx: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    /// Of the registers only `ip` and `sp` are known.
    pub few: bool,
    /// Copied from `sp` upward.
    pub bytes: &'a [u8],
    /// The bytes reach the stack's end: what is not in them does not exist, rather than was not
    /// copied.
    pub full: bool,
    /// Pages that were not in memory are zeros in `bytes`: never touched, or swapped out.
    pub holes: bool,
    /// `ip` is where a call has just returned to, not an instruction that was about to run: the call is
    /// named, not what follows it.
    pub returned: bool,
    /// Where the stack goes on behind the function that changed to this one.
    pub left: Option<LeftStack<'a>>,
}

/// A stack that the thread has left for the one that it is on, and to which it will return.
#[derive(Clone, Copy, Debug)]
pub struct LeftStack<'a> {
    /// The instruction and the registers with which it goes on there.
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// As of [`StackSample`].
    pub bytes: &'a [u8],
    pub full: bool,
}

/// A word that the walk through a stack has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackWord {
    /// From the stack pointer, bytes.
    pub distance: u64,
    pub expected: ExpectedWord,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpectedWord {
    /// 0: the frames end here.
    ReturnAddress(u64),
    /// A saved register that a frame is found by, as its distance from the stack pointer: another thread may have the
    /// same stack elsewhere.
    FramePointer(u64),
}

/// How to get from a frame to its caller, where that takes no register but rsp and rbp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnwindRow {
    /// The canonical frame address (CFA) is `cfa` from the stack pointer, or from rbp; the return address
    /// is at CFA - 8.
    Offsets {
        from_bp: bool,
        cfa: i32,
        /// Where the caller's rbp is, in words from the CFA; None: still in the register.
        bp: Option<i16>,
    },
    /// This has no caller.
    Root,
}
