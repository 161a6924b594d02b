//! The memory that the preloaded library and vmaudit share: one file (memfd) a process, sparse and of a fixed size.
//! Compiled into both.
//!
//! The library writes, and vmaudit reads whenever it likes; but for the unwind rules, which vmaudit writes
//! and the library reads. Nothing here is sent: there is no buffer that could be full and no event that
//! could be lost, and what a killed process had counted is all there.
//!
//! Neither side believes the other: what one finds here are figures, or numbers that it checks before it uses them as an
//! index. What the library has to rely on (where its tables are, how long they are) is in its own memory.

use super::pages::*;
use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// The first word of the file; another one in another version.
pub const MAGIC: u64 = 0x0007_7061_6568_6d76;

/// How allocations are counted.
pub const MODE_OFF: u32 = 0;
/// One every so many bytes, on average.
pub const MODE_SAMPLE: u32 = 1;
/// Each of them.
pub const MODE_EXACT: u32 = 2;

/// Open hash tables are several, each larger than the one before: what finds no space near its place in one
/// is in the next. So a program with few stacks writes to few pages. Sizes in bits.
pub const RULE_TABLES: [u32; 3] = [11, 14, 17];
pub const RULES: usize = in_all(&RULE_TABLES, RULE_TABLES.len());
/// Words of all descriptions, and nodes of all stacks.
pub const WORDS: usize = 1 << 25;
pub const NODE_COUNT: usize = 1 << 26;
/// Threads that count for themselves; the others share the last one.
pub const SHARDS: usize = 64;
/// A shard has counts for so many stacks at once, in chunks.
pub const CHUNK_STACKS: usize = 1 << 10;
pub const CHUNKS: usize = SHARDS * (STACKS + 1) / CHUNK_STACKS;
/// Each of these is as large as all before and one more: the table moves when it is three quarters full.
pub const LEAST_SAMPLE_BITS: u32 = 8;
pub const MOST_SAMPLE_BITS: u32 = 22;
pub const SAMPLES: usize = 2 << MOST_SAMPLE_BITS;
pub const REQUESTS: usize = 16;
/// Of a stack, sent with a request.
pub const REQUEST_BYTES: usize = 32 << 10;
/// Ranges of generated code.
pub const GENERATED: usize = 64;

/// More than a 256th of the peak is added to the shared total, within these bounds: the peak of several
/// threads is known to as much for each.
pub const LEAST_PENDING: i64 = 4 << 10;
pub const MOST_PENDING: i64 = 64 << 10;

/// For blocks of fewer bytes than [`LARGE`], the usable size is known by the requested size: one for each four bytes.
pub const GIVEN: usize = LARGE as usize / 4 + 1;

/// A part of the file: where it begins, and its bytes. The library has the beginning of each mapped, as far as it is used.
#[derive(Clone, Copy)]
pub struct Part {
    pub at: usize,
    pub bytes: usize,
}

/// Both sides have this part mapped whole: [`Head`], [`GIVEN`] sizes.
pub const CORE: usize = 0;
pub const RULE_PART: usize = 1;
pub const REQUEST_PART: usize = 2;
pub const STACK_PART: usize = 3;
pub const WORD_PART: usize = 4;
/// The owner of each chunk of counts: [`owner`].
pub const OWNER_PART: usize = 5;
pub const COUNT_PART: usize = 6;
/// The window of each leaf.
pub const LEAF_WINDOW_PART: usize = 7;
pub const LEAF_PART: usize = 8;
pub const BLOCK_PART: usize = 9;
pub const SAMPLE_PART: usize = 10;
pub const NODE_PART: usize = 11;

pub const PARTS: [Part; 12] = in_a_row([
    AT_GIVEN + GIVEN * 4,
    RULES * size_of::<Rule>(),
    REQUESTS * size_of::<Request>(),
    (STACKS + 1) * size_of::<Stack>(),
    WORDS * 8,
    CHUNKS * 4,
    CHUNKS * CHUNK_BYTES,
    LEAVES * 4,
    LEAVES * LEAF_BYTES,
    MAX_WORDS * 8,
    SAMPLES * size_of::<Sample>(),
    NODE_COUNT * size_of::<Node>(),
]);

/// The head has so much space.
pub const AT_GIVEN: usize = 16 << 10;
pub const CHUNK_BYTES: usize = CHUNK_STACKS * size_of::<Count>();
/// All of the file.
pub const BYTES: usize = PARTS[NODE_PART].at + PARTS[NODE_PART].bytes;
/// vmaudit has this much mapped: what it writes to. It reads the rest.
pub const SERVED: usize = PARTS[STACK_PART].at;

const fn in_a_row(bytes: [usize; 12]) -> [Part; 12] {
    let mut parts = [Part { at: 0, bytes: 0 }; 12];
    let (mut at, mut index) = (0, 0);
    while index < bytes.len() {
        let whole = (bytes[index] + 0xffff) & !0xffff;
        parts[index] = Part { at, bytes: whole };
        at += whole;
        index += 1;
    }
    parts
}

/// Whose counts a chunk has: a shard, and which stacks, in [`CHUNK_STACKS`]. 0: nobody's.
#[inline]
pub fn owner(shard: usize, stacks: usize) -> u32 {
    (shard as u32 + 1) << 16 | stacks as u32
}

/// What [`owner`] was given, where that can be.
#[inline]
pub fn owned_by(owner: u32) -> Option<(usize, usize)> {
    let (shard, stacks) = ((owner >> 16) as usize, (owner & 0xffff) as usize);
    (1..=SHARDS).contains(&shard).then(|| (shard - 1, stacks))
}

/// Entries of the first `levels` tables.
pub const fn in_all(tables: &[u32], levels: usize) -> usize {
    let (mut sum, mut at) = (0, 0);
    while at < levels {
        sum += 1 << tables[at];
        at += 1;
    }
    sum
}

/// Where a key may be, in the order of the search: up to `probes` places in each table.
#[inline(always)]
pub fn probes(tables: &[u32], key: u64, probes: usize) -> impl Iterator<Item = usize> + use<'_> {
    let mut begin = 0;
    tables.iter().flat_map(move |&bits| {
        let (home, first) = (spread(key, bits), begin);
        begin += 1 << bits;
        (home..home + probes).map(move |at| first + (at & ((1 << bits) - 1)))
    })
}

/// The first sample of the table with so many.
#[inline]
pub fn first_sample(bits: u32) -> usize {
    1 << bits
}

/// What a stack belongs to, [`FUNCTIONS`]' index.
pub const MALLOC: u8 = 0;
pub const CALLOC: u8 = 1;
pub const REALLOC: u8 = 2;
pub const MEMALIGN: u8 = 3;
pub const ALIGNED_ALLOC: u8 = 4;
pub const POSIX_MEMALIGN: u8 = 5;
pub const VALLOC: u8 = 6;
pub const PVALLOC: u8 = 7;
pub const REALLOCARRAY: u8 = 8;
/// The first of C++'s operators.
pub const OPERATORS: u8 = 9;

/// Functions that allocate, as symbol tables spell them.
pub const FUNCTIONS: [&str; 17] = [
    "malloc",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "reallocarray",
    "_Znwm",
    "_Znam",
    "_ZnwmRKSt9nothrow_t",
    "_ZnamRKSt9nothrow_t",
    "_ZnwmSt11align_val_t",
    "_ZnamSt11align_val_t",
    "_ZnwmSt11align_val_tRKSt9nothrow_t",
    "_ZnamSt11align_val_tRKSt9nothrow_t",
];

/// At the beginning.
#[repr(C, align(64))]
pub struct Head {
    pub magic: AtomicU64,
    /// vmaudit's, not changed afterwards.
    pub mode: AtomicU32,
    /// Set by the library once it counts.
    pub begun: AtomicU32,
    /// Bytes between two marks of a sample, on average.
    pub mean: AtomicU64,
    /// Counted up when a library was unloaded: what is known of code is void.
    pub code: AtomicU32,
    /// How many entries of `generated` are there.
    pub generated_len: AtomicU32,
    /// Counted up when `interpreter` was written; 0: there is none.
    pub interpreted: AtomicU32,
    /// How many of [`RULE_TABLES`] have rules.
    pub rule_tables: AtomicU32,
    /// Bytes of address space that counting takes in the process.
    pub mapped: AtomicU64,
    /// And bytes of its own memory, in tables.
    pub private: AtomicU64,
    pub generated: [Range; GENERATED],
    /// Where the functions of [`FUNCTIONS`] are in truth.
    pub real: [AtomicU64; FUNCTIONS.len()],
    /// The numbers of stacks, leaves and chunks: the library has its own, and vmaudit reads these.
    pub last_stack: AtomicU32,
    pub next_leaf: AtomicU32,
    pub next_chunk: AtomicU32,
    /// The table of samples that is in use; 0: none so far.
    pub sample_bits: AtomicU32,
    pub interpreter: Interpreter,
    pub doubts: Doubts,
    pub total: Total,
    pub peaks: Peaks,
    pub shards: [Shard; SHARDS],
}

const _: () = assert!(size_of::<Head>() <= AT_GIVEN);

#[repr(C)]
pub struct Range {
    pub start: AtomicU64,
    pub end: AtomicU64,
}

/// Sources of inexactness.
#[repr(C, align(64))]
pub struct Doubts {
    /// Frees of what was not counted.
    pub unseen_frees: AtomicU64,
    /// Blocks whose address was handed out again.
    pub lost_frees: AtomicU64,
    pub refused: AtomicU64,
    pub refused_bytes: AtomicU64,
    /// No space in a table: blocks that are in no figure.
    pub uncounted: AtomicU64,
    /// No space in a table: counted without a stack.
    pub without_stack: AtomicU64,
    /// Requests for unwind rules, and those without an answer.
    pub requests: AtomicU64,
    pub unanswered: AtomicU64,
    /// Frames of an interpreter that were not what they should be, or of another stack: allocations without them.
    pub broken_frames: AtomicU64,
    /// Searches for a thread's frames where there are several interpreters.
    pub several: AtomicU64,
}

/// An interpreter whose frames are read. Addresses in the process; offsets in bytes, in the order of the constants below.
#[repr(C)]
pub struct Interpreter {
    /// Of the file that has it.
    pub start: AtomicU64,
    pub end: AtomicU64,
    pub runtime: AtomicU64,
    /// The types of code, text and byte strings.
    pub code_type: AtomicU64,
    pub text_type: AtomicU64,
    pub bytes_type: AtomicU64,
    pub offsets: [AtomicU16; OFFSETS],
}

/// bpf/vmaudit.h, struct vmaudit_layout, says what each is.
pub const INTERPRETERS: usize = 0;
pub const INTERPRETER_NEXT: usize = 1;
pub const THREADS: usize = 2;
pub const THREAD_NEXT: usize = 3;
pub const THREAD_ID: usize = 4;
pub const STATE_FRAME: usize = 5;
pub const RUN_FRAME: usize = 6;
pub const RUN_PREVIOUS: usize = 7;
pub const CODE: usize = 8;
pub const PREVIOUS: usize = 9;
pub const INSTRUCTION: usize = 10;
pub const OWNER: usize = 11;
pub const ENTRY: usize = 12;
pub const FIRST_LINE: usize = 13;
pub const NAMES: usize = 14;
pub const TRACEABLE: usize = 15;
pub const CODE_BYTES: usize = 16;
pub const OBJECT_TYPE: usize = 17;
pub const OBJECT_SIZE: usize = 18;
pub const BYTES_DATA: usize = 19;
pub const TEXT_LENGTH: usize = 20;
pub const TEXT_STATE: usize = 21;
pub const TEXT_ASCII: usize = 22;
pub const TEXT_OTHER: usize = 23;
pub const FOREIGN_OWNER: usize = 24;
pub const OFFSETS: usize = 28;
/// What an interpreter has not.
pub const NO_OFFSET: u16 = u16::MAX;

/// Functions of an interpreter that are taken of a stack.
pub const MOST_INTERPRETED: usize = 128;
/// Bytes of a name, and of a table of lines.
pub const NAME_MOST: usize = 1024;
pub const LINES_MOST: usize = 64 << 10;

/// Among a stack's return addresses, before that of the function that evaluates it: a function whose description has
/// this number, and the place in it; number 0: there are more, which were not taken.
#[inline]
pub fn interpreted_word(description: u32, at: u64) -> u64 {
    1 << 63 | (description as u64) << 32 | at as u32 as u64
}

/// What [`interpreted_word`] was given; None: an address. No number is as large as the upper half of the kernel's.
#[inline]
pub fn interpreted(word: u64) -> Option<(u32, i32)> {
    let description = (word >> 32) as u32 & 0x7fff_ffff;
    (word >> 63 != 0 && description <= STACKS as u32).then_some((description, word as i32))
}

/// Of all threads, but for what each has not added yet.
#[repr(C, align(64))]
pub struct Total {
    pub outstanding: AtomicI64,
    pub peak: AtomicI64,
    /// Milliseconds since vmaudit began.
    pub peak_tick: AtomicU32,
}

/// Read with each call, and seldom written.
#[repr(C, align(64))]
pub struct Peaks {
    /// Counted up when more is outstanding than ever before.
    pub number: AtomicU32,
    /// Threads that count.
    pub threads: AtomicU32,
    /// What a thread may keep to itself: bytes.
    pub pending: AtomicI64,
}

/// A thread's own.
#[repr(C, align(64))]
pub struct Shard {
    pub high_tick: AtomicU32,
    /// Bytes outstanding that the total does not have yet.
    pub delta: AtomicI64,
    /// The most that `delta` was since it was added to the total.
    pub high: AtomicI64,
}

/// How to find the caller of a frame; in an open hash table.
#[repr(C)]
pub struct Rule {
    /// [`rule_key`]; 0 where nothing is, [`GONE`] where something was.
    pub key: AtomicU64,
    /// [`rule_body`].
    pub body: AtomicU64,
}

pub const GONE: u64 = 1;
/// Keys are searched for in as many places of each table at most.
pub const RULE_PROBES: usize = 16;

/// The frame begins `cfa` bytes from the stack pointer, or from rbp.
pub const BY_SP: u8 = 1;
pub const BY_BP: u8 = 2;
/// This has no caller.
pub const ROOT: u8 = 3;
/// No rule leads on.
pub const STOP: u8 = 4;
/// The frame begins where the word `cfa` bytes from rbp says, and the caller's rbp is so many words from where rbp points to.
pub const THROUGH_BP: u8 = 5;

/// The address is where a call returns to, or with `innermost` an instruction that is about to run.
#[inline]
pub fn rule_key(address: u64, innermost: bool, code: u32) -> u64 {
    address << 1 | innermost as u64 | (code as u64 & 0xffff) << 48
}

#[inline]
pub fn rule_body(kind: u8, cfa: i32, bp: i16) -> u64 {
    cfa as u32 as u64 | (bp as u16 as u64) << 32 | (kind as u64) << 48
}

#[inline]
pub fn kind_of(body: u64) -> u8 {
    (body >> 48) as u8
}

#[inline]
pub fn cfa_of(body: u64) -> i64 {
    body as u32 as i32 as i64
}

/// Where the caller's rbp is, in words from the CFA; 0: still in the register.
#[inline]
pub fn bp_of(body: u64) -> i64 {
    (body >> 32) as u16 as i16 as i64
}

#[inline]
pub fn spread(key: u64, bits: u32) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
}

/// A frame, and those outside of it.
#[repr(C)]
pub struct Node {
    /// A return address, or [`interpreted_word`].
    pub word: AtomicU64,
    /// The node of its caller, which has a lower number; 0: this is the outermost one.
    pub parent: AtomicU32,
    pub pad: AtomicU32,
}

/// A call stack, or a description.
#[repr(C)]
pub struct Stack {
    /// The node of its innermost frame, or the index of a description's first word.
    pub first: AtomicU32,
    /// Words of a description; otherwise 1. Written last.
    pub len: AtomicU32,
    /// [`FUNCTIONS`]' index | [`INCOMPLETE`] or [`TRUNCATED`].
    pub what: AtomicU32,
    /// [`Head::code`] when it was walked.
    pub code: AtomicU32,
}

pub const INCOMPLETE: u32 = 1 << 8;
pub const TRUNCATED: u32 = 1 << 9;
/// The most words of a stack: return addresses, and functions of an interpreter.
pub const MOST_WORDS: usize = 1024;
/// And of a description.
pub const MOST_DESCRIPTION: usize = 4 + (2 * NAME_MOST + LINES_MOST) / 8 + 3;
/// Not a stack, but the description of what an interpreter runs: its first line and the first instruction that counts
/// as running; of the file's name, bytes and, << 32, bytes a character; of its own name the same; bytes of its table of
/// lines, or ~0 where it is not there. Each of the three follows, in whole words.
pub const DESCRIPTION: u32 = 1 << 10;

/// Of a stack, by one thread. With samples, estimates: blocks in units of 1 / 1024.
#[repr(C, align(64))]
pub struct Count {
    pub allocations: AtomicU64,
    pub bytes: AtomicU64,
    pub frees: AtomicU64,
    pub freed_bytes: AtomicU64,
    /// Freed before the thread allocated again.
    pub temporary: AtomicU64,
    /// `bytes` less `freed_bytes`, and blocks, at the peak with this number; if that is not the newest, then
    /// nothing has changed since.
    pub peak_bytes: AtomicU64,
    pub peak_blocks: AtomicU64,
    pub peak: AtomicU32,
    pub pad: AtomicU32,
}

/// A sampled block, or a huge one, in an open hash table; address 0: none.
#[repr(C)]
pub struct Sample {
    pub address: AtomicU64,
    pub size: AtomicU64,
    pub stack: AtomicU32,
    pub tick: AtomicU32,
    /// malloc_usable_size(3); 0: not known.
    pub given: AtomicU64,
}

/// A request for the rules along a stack.
#[repr(C, align(64))]
pub struct Request {
    pub state: AtomicU32,
    pub len: AtomicU32,
    /// [`REQUEST_TO_END`], [`REQUEST_MODULE`].
    pub flags: AtomicU32,
    pub code: AtomicU32,
    pub ip: AtomicU64,
    pub sp: AtomicU64,
    pub bp: AtomicU64,
    pub bytes: [AtomicU64; REQUEST_BYTES / 8],
}

pub const REQUEST_FREE: u32 = 0;
pub const REQUEST_TAKEN: u32 = 1;
pub const REQUEST_WAITS: u32 = 2;
pub const REQUEST_ANSWERED: u32 = 3;
/// `bytes` reach the stack's end.
pub const REQUEST_TO_END: u32 = 1;
/// Nothing is requested but that vmaudit looks at what is mapped: the library has met a module.
pub const REQUEST_MODULE: u32 = 4;

/// Where [`AT_GIVEN`] has a size: none of an allocator's steps is within four bytes.
#[inline]
pub fn given_at(size: u64) -> usize {
    (size as usize).div_ceil(4)
}

/// What is there: the least of the first few times, and how often it was read.
#[inline]
pub fn given(word: u32) -> (u64, u32) {
    ((word & 0xff_ffff) as u64, word >> 24)
}

/// The symbol of a pointer to the [`Control`] in the library: in a process that was started with it and is
/// not counted it is asleep until vmaudit writes there.
pub const CONTROL_NAME: &str = "vmaudit_heap_control";
/// Its first word; another one in another version.
pub const ARMED: u64 = 0x0002_6465_6d72_6176;

/// How a process that sleeps is woken, by who may write to its memory (process_vm_writev(2)). vmaudit writes its number to
/// `request` and wakes it; the process answers with a descriptor of its own, which vmaudit takes (pidfd_getfd(2)): nothing has
/// a name that another one could bind or open.
#[repr(C)]
pub struct Control {
    pub armed: AtomicU64,
    /// The assembly of `malloc` reads it: [`ASLEEP`] …
    pub awake: AtomicU8,
    /// The number of the vmaudit that wants to count: [`waker`]. The library clears it.
    pub request: AtomicU64,
    /// The vmaudit that `descriptor` is for, or what a child of fork has written to [`Forked::number`]; 0: nobody.
    pub offered: AtomicU64,
    /// A connected socket.
    pub descriptor: AtomicU32,
    /// The vmaudit that counts; 0: nobody.
    pub counts_for: AtomicU64,
    /// Where the area's [`Head`] is in the process; 0: nowhere.
    pub area: AtomicU64,
}

/// The number of a vmaudit: its process and the time at which that began, so that no later one has the same.
#[inline]
pub fn waker(pid: u32, start_time: u64) -> u64 {
    (pid as u64) << 32 | start_time as u32 as u64
}

/// Calls go straight to the real functions.
pub const ASLEEP: u8 = 0;
/// Each thread counts its bytes down.
pub const COUNTS_DOWN: u8 = 1;
/// Each call is examined; or counting has not begun. A byte, because vmaudit writes it while others read it.
pub const EXAMINES: u8 = 2;

/// The variable of the environment: [`TOKEN`] digits, a colon, and the path of vmaudit's socket.
pub const VARIABLE: &str = "VMAUDIT_HEAP";
/// Hexadecimal digits that only processes know which got the environment.
pub const TOKEN: usize = 32;
/// The longest path of a socket, with the zero behind it.
pub const SOCKET_PATH: usize = 64;

/// What a process sends when it begins to count. It gets two files: the area, and its doorbell.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hello {
    pub magic: u64,
    /// It was forked by a process that counts already.
    pub forked: u32,
    pub pad: u32,
    /// Where its [`Control`] is.
    pub control: u64,
    pub token: [u8; TOKEN],
}

/// A page of a process' own, which its children of fork have as well: all that they can do with it is to ring.
#[repr(C)]
pub struct Bell {
    /// Counted up with each request: vmaudit waits for it.
    pub rung: AtomicU32,
    /// Milliseconds since vmaudit began: it writes them. They stand still when vmaudit does.
    pub tick: AtomicU32,
    /// The same as blocks are dated ([`super::pages::tick16`]).
    pub tick16: AtomicU32,
    /// Children that wait for vmaudit to take the descriptor that they offer.
    pub forked: [Forked; 32],
}

/// A child of fork. It is the one whose [`Control::offered`] is the number.
#[repr(C)]
pub struct Forked {
    pub number: AtomicU64,
    /// Its process, as it is called where it runs.
    pub pid: AtomicU32,
    pub pad: AtomicU32,
}
