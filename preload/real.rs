//! The interposed functions: those of the next library that has them. And what is handed out before they are
//! found.

use super::area::FUNCTIONS;
use super::cfi::Module;
use super::setup::{HEEDED_BITS, heed};
use core::arch::global_asm;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

/// What `dlsym` takes for the library after the caller's.
const RTLD_NEXT: *mut u8 = usize::MAX as *mut u8;
/// And for the first one of all that has it.
const RTLD_DEFAULT: *mut u8 = null_mut();
const RTLD_LAZY: i32 = 1;
const RTLD_NOLOAD: i32 = 4;
const ENOMEM: i32 = 12;

/// The assembly jumps to these.
pub static MALLOC: AtomicUsize = AtomicUsize::new(0);
pub static FREE: AtomicUsize = AtomicUsize::new(0);
pub static CALLOC: AtomicUsize = AtomicUsize::new(0);
static REALLOC: AtomicUsize = AtomicUsize::new(0);
static MEMALIGN: AtomicUsize = AtomicUsize::new(0);
static ALIGNED_ALLOC: AtomicUsize = AtomicUsize::new(0);
static POSIX_MEMALIGN: AtomicUsize = AtomicUsize::new(0);
static VALLOC: AtomicUsize = AtomicUsize::new(0);
static PVALLOC: AtomicUsize = AtomicUsize::new(0);
static DLCLOSE: AtomicUsize = AtomicUsize::new(0);
/// Of the library that has malloc; another one's knows nothing of its blocks.
static MALLOC_USABLE_SIZE: AtomicUsize = AtomicUsize::new(0);

/// glibc's `__libc_single_threaded` (2.32), the program's and the library's own: one may be a copy of the other.
static SINGLE: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new((&raw const NOT_KNOWN).cast_mut()) }; 2];
static NOT_KNOWN: u8 = 0;

/// Only one thread runs. It stays so until that thread starts another one. False where that is not known.
#[inline(always)]
pub fn is_single() -> bool {
    // glibc writes it with a plain store; a volatile read is as good as a relaxed one.
    SINGLE.iter().all(|at| unsafe { at.load(Relaxed).read_volatile() } != 0)
}

/// C++'s operators, as they are mangled; those that allocate first, in the order of [`FUNCTIONS`].
const OPERATOR_NAMES: [&[u8]; 20] = [
    b"_Znwm\0",
    b"_Znam\0",
    b"_ZnwmRKSt9nothrow_t\0",
    b"_ZnamRKSt9nothrow_t\0",
    b"_ZnwmSt11align_val_t\0",
    b"_ZnamSt11align_val_t\0",
    b"_ZnwmSt11align_val_tRKSt9nothrow_t\0",
    b"_ZnamSt11align_val_tRKSt9nothrow_t\0",
    b"_ZdlPv\0",
    b"_ZdaPv\0",
    b"_ZdlPvm\0",
    b"_ZdaPvm\0",
    b"_ZdlPvRKSt9nothrow_t\0",
    b"_ZdaPvRKSt9nothrow_t\0",
    b"_ZdlPvSt11align_val_t\0",
    b"_ZdaPvSt11align_val_t\0",
    b"_ZdlPvmSt11align_val_t\0",
    b"_ZdaPvmSt11align_val_t\0",
    b"_ZdlPvSt11align_val_tRKSt9nothrow_t\0",
    b"_ZdaPvSt11align_val_tRKSt9nothrow_t\0",
];
pub const OPERATORS: usize = OPERATOR_NAMES.len();
pub const ALLOCATING: usize = 8;
/// Of a throwing operator, the one that does not.
pub const NOTHROW: [usize; ALLOCATING] = [2, 3, 2, 3, 6, 7, 6, 7];

static OPERATOR: [AtomicUsize; OPERATORS] = [const { AtomicUsize::new(0) }; OPERATORS];
/// Where callers of the operators go: to the real one, or to ours before it.
pub static OPERATOR_TARGET: [AtomicUsize; OPERATORS] = [const { AtomicUsize::new(0) }; OPERATORS];
/// 0: not resolved. 1: the allocator's own, which do not go through malloc. 2: the C++ library's, which do.
static OPERATORS_ARE: AtomicU32 = AtomicU32::new(0);
const OWN: u32 = 1;
const FORWARDING: u32 = 2;

static IS_SECOND: AtomicU32 = AtomicU32::new(0);

/// 0, 1: being resolved, 2: found.
static RESOLVED: AtomicU32 = AtomicU32::new(0);

// May be absent: another libc, or an old one with a library for each of these.
global_asm!(
    ".weak dlsym",
    ".weak dlopen",
    ".weak dladdr",
    ".weak dl_iterate_phdr",
    ".weak _dl_find_object",
    ".weak pthread_key_create",
    ".weak pthread_setspecific",
    ".weak pthread_atfork",
    ".weak __register_atfork",
    ".weak __libc_malloc",
    ".weak __libc_free",
    ".weak __libc_calloc",
    ".weak __libc_realloc",
    ".weak __libc_memalign",
);

/// The address of a symbol that may be absent.
macro_rules! weak {
    ($name:literal) => {{
        let at: usize;
        unsafe {
            core::arch::asm!(concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"), out(reg) at,
                options(pure, nomem, nostack));
        }
        at
    }};
}

macro_rules! call {
    ($at:expr, fn($($kind:ty),*) -> $result:ty, $($value:expr),*) => {
        unsafe { core::mem::transmute::<usize, unsafe extern "C" fn($($kind),*) -> $result>($at)($($value),*) }
    };
}

fn next(name: &[u8]) -> usize {
    find(RTLD_NEXT, name)
}

fn find(of: *mut u8, name: &[u8]) -> usize {
    let dlsym = weak!("dlsym");
    if dlsym == 0 {
        return 0;
    }
    call!(dlsym, fn(*mut u8, *const u8) -> usize, of, name.as_ptr())
}

/// Finds the real functions; at the first call of one of ours.
pub fn resolve() {
    if RESOLVED.compare_exchange(0, 1, AcqRel, Relaxed).is_err() {
        return;
    }
    let other = |name: &[u8], libc: usize| match next(name) {
        0 => libc,
        found => found,
    };
    let free = other(b"free\0", weak!("__libc_free"));
    let calloc = other(b"calloc\0", weak!("__libc_calloc"));
    let malloc = other(b"malloc\0", weak!("__libc_malloc"));
    REALLOC.store(other(b"realloc\0", weak!("__libc_realloc")), Relaxed);
    MEMALIGN.store(other(b"memalign\0", weak!("__libc_memalign")), Relaxed);
    ALIGNED_ALLOC.store(next(b"aligned_alloc\0"), Relaxed);
    POSIX_MEMALIGN.store(next(b"posix_memalign\0"), Relaxed);
    VALLOC.store(next(b"valloc\0"), Relaxed);
    PVALLOC.store(next(b"pvalloc\0"), Relaxed);
    DLCLOSE.store(next(b"dlclose\0"), Relaxed);
    let usable = next(b"malloc_usable_size\0");
    if usable != 0 && base_of(usable) == base_of(malloc) {
        MALLOC_USABLE_SIZE.store(usable, Relaxed);
    }
    let single = b"__libc_single_threaded\0";
    if let (first @ 1.., own @ 1..) = (find(RTLD_DEFAULT, single), next(single)) {
        SINGLE[0].store(first as *mut u8, Relaxed);
        SINGLE[1].store(own as *mut u8, Relaxed);
    }
    let control = find(RTLD_DEFAULT, b"vmaudit_heap_control\0");
    let is_other = control != 0 && control != &raw const super::setup::vmaudit_heap_control as usize;
    IS_SECOND.store(is_other as u32, Relaxed);
    CALLOC.store(calloc, Relaxed);
    FREE.store(free, Relaxed);
    MALLOC.store(malloc, Release);
    RESOLVED.store(2, Release);
}

pub fn is_resolved() -> bool {
    RESOLVED.load(Acquire) == 2 && MALLOC.load(Relaxed) != 0 && CALLOC.load(Relaxed) != 0
}

#[inline(always)]
fn resolved(function: &AtomicUsize) -> usize {
    match function.load(Acquire) {
        0 => {
            resolve();
            function.load(Acquire)
        }
        found => found,
    }
}

/// By [`FUNCTIONS`]' index; 0 where one is not there.
pub fn addresses() -> [usize; FUNCTIONS.len()] {
    let malloc =
        [&MALLOC, &CALLOC, &REALLOC, &MEMALIGN, &ALIGNED_ALLOC, &POSIX_MEMALIGN, &VALLOC, &PVALLOC, &REALLOC];
    let mut out = [0; FUNCTIONS.len()];
    for (to, from) in out.iter_mut().zip(malloc.into_iter().chain(&OPERATOR)) {
        *to = from.load(Relaxed);
    }
    out
}

pub fn malloc(size: usize) -> *mut u8 {
    match resolved(&MALLOC) {
        0 => boot(size, 16),
        real => call!(real, fn(usize) -> *mut u8, size),
    }
}

pub fn calloc(count: usize, size: usize) -> *mut u8 {
    match resolved(&CALLOC) {
        0 => count.checked_mul(size).map_or(null_mut(), |bytes| boot(bytes, 16)),
        real => call!(real, fn(usize, usize) -> *mut u8, count, size),
    }
}

pub fn free(block: *mut u8) {
    if block.is_null() || is_boot(block) {
        return;
    }
    match resolved(&FREE) {
        0 => {}
        real => call!(real, fn(*mut u8) -> (), block),
    }
}

pub fn realloc(block: *mut u8, size: usize) -> *mut u8 {
    match resolved(&REALLOC) {
        0 => from_boot(block, size, boot(size, 16)),
        real => call!(real, fn(*mut u8, usize) -> *mut u8, block, size),
    }
}

pub fn memalign(alignment: usize, size: usize) -> *mut u8 {
    match resolved(&MEMALIGN) {
        0 => boot(size, alignment),
        real => call!(real, fn(usize, usize) -> *mut u8, alignment, size),
    }
}

pub fn aligned_alloc(alignment: usize, size: usize) -> *mut u8 {
    match resolved(&ALIGNED_ALLOC) {
        0 => memalign(alignment, size),
        real => call!(real, fn(usize, usize) -> *mut u8, alignment, size),
    }
}

pub fn posix_memalign(to: *mut *mut u8, alignment: usize, size: usize) -> i32 {
    match resolved(&POSIX_MEMALIGN) {
        0 => {
            let block = memalign(alignment, size);
            if block.is_null() {
                return ENOMEM;
            }
            unsafe { *to = block };
            0
        }
        real => call!(real, fn(*mut *mut u8, usize, usize) -> i32, to, alignment, size),
    }
}

pub fn valloc(size: usize) -> *mut u8 {
    match resolved(&VALLOC) {
        0 => memalign(4096, size),
        real => call!(real, fn(usize) -> *mut u8, size),
    }
}

pub fn pvalloc(size: usize) -> *mut u8 {
    match resolved(&PVALLOC) {
        0 => memalign(4096, size.saturating_add(4095) & !4095),
        real => call!(real, fn(usize) -> *mut u8, size),
    }
}

pub fn dlclose(handle: *mut u8) -> i32 {
    match resolved(&DLCLOSE) {
        0 => -1,
        real => call!(real, fn(*mut u8) -> i32, handle),
    }
}

/// The module that an address is in, where libc finds it without a lock (glibc 2.35).
pub fn module_of(address: u64) -> Option<Module> {
    let find = weak!("_dl_find_object");
    // struct dl_find_object: flags, where it begins and ends, link map, PT_GNU_EH_FRAME …
    let mut object = [0u64; 12];
    if find == 0 || call!(find, fn(u64, *mut u64) -> i32, address, object.as_mut_ptr()) != 0 {
        return None;
    }
    let [_, start, end, _, header, ..] = object;
    Some(Module { start, end, header })
}

/// How many libraries were unloaded so far.
pub fn unloads() -> u64 {
    unsafe extern "C" fn take(info: *const u64, _: usize, to: *mut u8) -> i32 {
        // struct dl_phdr_info: address, name, headers, their number, dlpi_adds, dlpi_subs
        unsafe { *to.cast::<u64>() = *info.add(5) };
        1
    }
    let mut out = 0u64;
    let iterate = weak!("dl_iterate_phdr");
    if iterate != 0 {
        type Take = unsafe extern "C" fn(*const u64, usize, *mut u8) -> i32;
        call!(iterate, fn(Take, *mut u8) -> i32, take, (&raw mut out).cast());
    }
    out
}

pub fn pthread_key_create(key: &mut u32, end: unsafe extern "C" fn(*mut u8)) -> i32 {
    match weak!("pthread_key_create") {
        0 => -1,
        real => call!(real, fn(*mut u32, unsafe extern "C" fn(*mut u8)) -> i32, key, end),
    }
}

pub fn pthread_setspecific(key: u32, value: *const u8) {
    let real = weak!("pthread_setspecific");
    if real != 0 {
        call!(real, fn(u32, *const u8) -> i32, key, value);
    }
}

/// Another library of this kind comes before this one.
pub fn is_second() -> bool {
    IS_SECOND.load(Relaxed) != 0
}

/// What is called in each child of fork (pthread_atfork(3); glibc exports it by another name).
pub fn at_fork(child: unsafe extern "C" fn()) {
    type Handler = Option<unsafe extern "C" fn()>;
    match (weak!("__register_atfork"), weak!("pthread_atfork")) {
        (0, 0) => {}
        (0, musls) => drop(call!(musls, fn(Handler, Handler, Handler) -> i32, None, None, Some(child))),
        (glibcs, _) => {
            call!(glibcs, fn(Handler, Handler, Handler, *mut u8) -> i32, None, None, Some(child), null_mut());
        }
    }
}

/// The real operator. A library that was loaded for itself alone is not among those that come next.
pub fn operator(number: usize) -> usize {
    let known = OPERATOR[number].load(Acquire);
    if known != 0 {
        return known;
    }
    resolve();
    let name = OPERATOR_NAMES[number];
    let mut found = next(name);
    let (dlopen, dlsym) = (weak!("dlopen"), weak!("dlsym"));
    if dlopen != 0 && dlsym != 0 {
        for library in [&b"libstdc++.so.6\0"[..], b"libc++.so.1\0", b"libc++abi.so.1\0"] {
            if found != 0 {
                break;
            }
            let flags = RTLD_LAZY | RTLD_NOLOAD;
            let handle = call!(dlopen, fn(*const u8, i32) -> *mut u8, library.as_ptr(), flags);
            if !handle.is_null() {
                found = call!(dlsym, fn(*mut u8, *const u8) -> usize, handle, name.as_ptr());
                dlclose(handle);
            }
        }
    }
    OPERATOR[number].store(found, Release);
    found
}

/// Where the library begins that an address is in; 0: not known.
fn base_of(address: usize) -> usize {
    // Dl_info: name of the file, its base …
    let mut info = [0usize; 4];
    match weak!("dladdr") {
        0 => 0,
        dladdr => match call!(dladdr, fn(usize, *mut usize) -> i32, address, info.as_mut_ptr()) {
            0 => 0,
            _ => info[1],
        },
    }
}

/// malloc_usable_size(3); 0: not known.
pub fn given(block: u64) -> u64 {
    match MALLOC_USABLE_SIZE.load(Relaxed) {
        0 => 0,
        _ if is_boot(block as *mut u8) => 0,
        real => call!(real, fn(u64) -> usize, block) as u64,
    }
}

/// The operators are the allocator's own: its library has both.
pub fn operators_are_own() -> bool {
    match OPERATORS_ARE.load(Relaxed) {
        OWN => return true,
        FORWARDING => return false,
        _ => {}
    }
    let own = base_of(operator(0)) == base_of(resolved(&MALLOC));
    OPERATORS_ARE.store(if own { OWN } else { FORWARDING }, Relaxed);
    own
}

const BOOT_BYTES: usize = 64 << 10;

#[repr(align(64))]
struct Boot(core::cell::UnsafeCell<[u8; BOOT_BYTES]>);
// Handed out piece by piece.
unsafe impl Sync for Boot {}

static BOOT: Boot = Boot(core::cell::UnsafeCell::new([0; BOOT_BYTES]));
static BOOT_USED: AtomicUsize = AtomicUsize::new(0);

/// While the real functions are being found, the lookup may allocate: zeros that are never given back. Before
/// each block its size.
fn boot(size: usize, alignment: usize) -> *mut u8 {
    let alignment = alignment.max(16);
    let mut used = BOOT_USED.load(Relaxed);
    loop {
        let at = (used + 16 + alignment - 1) & !(alignment - 1);
        let Some(end) = at.checked_add(size).map(|end| (end + 15) & !15) else { return null_mut() };
        if end > BOOT_BYTES {
            return null_mut();
        }
        match BOOT_USED.compare_exchange(used, end, Relaxed, Relaxed) {
            Ok(_) => unsafe {
                let block = BOOT.0.get().cast::<u8>().add(at);
                *block.cast::<usize>().sub(1) = size;
                heed(block as u64, true);
                return block;
            },
            Err(other) => used = other,
        }
    }
}

/// Frees of these are not passed on.
pub fn is_boot(block: *mut u8) -> bool {
    (block as usize).wrapping_sub(BOOT.0.get() as usize) < BOOT_BYTES
}

/// After all other counts were set anew. Not one by one: where a block began is not kept.
pub fn heed_boot() {
    let used = BOOT_USED.load(Relaxed);
    for at in (0..used).step_by(16) {
        heed(BOOT.0.get() as u64 + at as u64, true);
    }
}

/// The real free, where it is found and none of our own blocks can come to it.
pub fn only_free() -> Option<usize> {
    let real = FREE.load(Acquire);
    (real != 0 && BOOT_USED.load(Relaxed) == 0).then_some(real)
}

/// `to` with what was in a block of the boot arena.
pub fn from_boot(block: *mut u8, size: usize, to: *mut u8) -> *mut u8 {
    if !to.is_null() && is_boot(block) {
        unsafe {
            let former = *block.cast::<usize>().sub(1);
            for at in 0..former.min(size) {
                to.add(at).write_volatile(*block.add(at));
            }
        }
    }
    to
}

const _: () = assert!(HEEDED_BITS == 16, "the assembly of free shifts by 48");
