//! Calls in strace's spelling, and their arguments for JSON. `...` replaces what a record does not contain,
//! as in strace for what it cuts short.

pub mod errno;
pub mod flags;

use crate::model::{Addr, VmEvent, VmOp, wait_status};
use crate::sys::abi::MREMAP_FIXED;
use serde_json::{Map, Value, json};

/// mremap(2)'s MREMAP_FIXED: only then the kernel uses the new address. A core was dumped (wait status).
const CORE: i32 = 0x80;

/// `NULL` or `0x7f…`.
fn pointer(addr: Addr) -> String {
    if addr.0 == 0 { "NULL".to_string() } else { format!("{addr}") }
}

/// A number in hex, `0` as it is (C's `%#x`).
fn hex(value: u64) -> String {
    if value == 0 { "0".to_string() } else { format!("{value:#x}") }
}

/// A string as C writes it.
pub fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for (i, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => out += "\\\"",
            b'\\' => out += "\\\\",
            b'\n' => out += "\\n",
            b'\t' => out += "\\t",
            b'\r' => out += "\\r",
            0x0b => out += "\\v",
            0x0c => out += "\\f",
            b' '..=b'~' => out.push(char::from(byte)),
            _ if bytes.get(i + 1).is_some_and(u8::is_ascii_digit) => out += &format!("\\{byte:03o}"),
            _ => out += &format!("\\{byte:o}"),
        }
    }
    out.push('"');
    out
}

/// As [`call`], with the name of the file that is mapped: `mmap(…, 3</etc/ld.so.cache>, 0)`, as of
/// `strace -y`.
pub fn call_with_file(event: &VmEvent) -> String {
    let text = call(event);
    let VmOp::Mmap { fd, offset, file: Some(file), .. } = &event.op else { return text };
    let end = format!(", {})", hex(*offset));
    match text.strip_suffix(&end) {
        Some(start) if *fd >= 0 && !file.path.is_empty() => {
            let quoted = quoted(&file.path);
            let path = quoted.get(1..quoted.len() - 1).unwrap_or_default();
            let deleted = if file.deleted { " (deleted)" } else { "" };
            format!("{start}<{path}{deleted}>{end}")
        }
        _ => text,
    }
}

/// The call without its result: `munmap(0x7f0000000000, 4096)`. Steps in the life of a task that
/// are no call read `+++ exited with 0 +++`.
pub fn call(event: &VmEvent) -> String {
    match &event.op {
        VmOp::Mmap { addr, len, prot, flags, fd, offset, .. } => format!(
            "mmap({}, {len}, {}, {}, {fd}, {})",
            pointer(*addr),
            flags::prot(*prot),
            flags::map(*flags),
            hex(*offset)
        ),
        VmOp::Munmap { addr, len } => format!("munmap({}, {len})", pointer(*addr)),
        VmOp::Mremap { old, old_len, new_len, flags, new_addr } => {
            let to =
                if flags & MREMAP_FIXED != 0 { format!(", {}", pointer(*new_addr)) } else { String::new() };
            format!("mremap({}, {old_len}, {new_len}, {}{to})", pointer(*old), flags::mremap(*flags))
        }
        VmOp::Brk { requested, .. } => format!("brk({})", pointer(*requested)),
        VmOp::Mprotect { addr, len, prot, pkey: None } => {
            format!("mprotect({}, {len}, {})", pointer(*addr), flags::prot(*prot))
        }
        VmOp::Mprotect { addr, len, prot, pkey: Some(pkey) } => {
            format!("pkey_mprotect({}, {len}, {}, {pkey})", pointer(*addr), flags::prot(*prot))
        }
        VmOp::Madvise { addr, len, advice } => {
            format!("madvise({}, {len}, {})", pointer(*addr), flags::advice(*advice))
        }
        VmOp::ProcessMadvise { pidfd, iovecs, advice } => {
            // Any flag is refused (mm/madvise.c, SYSCALL_DEFINE5(process_madvise)).
            let flags = if event.failed() { "..." } else { "0" };
            format!("process_madvise({pidfd}, [...], {iovecs}, {}, {flags})", flags::advice(*advice))
        }
        VmOp::Shmat { shmid, addr, flags, .. } => {
            format!("shmat({shmid}, {}, {})", pointer(*addr), flags::shm(*flags))
        }
        VmOp::Shmdt { addr } => format!("shmdt({})", pointer(*addr)),
        VmOp::RemapFilePages { addr, len, pgoff, flags } => {
            // Any other protection is refused (mm/mmap.c, remap_file_pages).
            let prot = if event.failed() { "..." } else { "PROT_NONE" };
            let flags = flags::map(*flags);
            format!("remap_file_pages({}, {len}, {prot}, {pgoff}, {flags})", pointer(*addr))
        }
        VmOp::IoSetup { nr_events, mapped } => match mapped {
            Some(ring) => format!("io_setup({nr_events}, [{}])", ring.start),
            None => format!("io_setup({nr_events}, ...)"),
        },
        VmOp::IoDestroy { ctx } => format!("io_destroy({ctx})"),
        VmOp::MapShadowStack { addr, len, flags } => {
            format!("map_shadow_stack({}, {len}, {})", pointer(*addr), flags::shadow_stack(*flags))
        }
        VmOp::SetVmaName { addr, len, name } => {
            let name = match name {
                None => "NULL".to_string(),
                // A refused call may have left the string on a page that is not there to be read.
                Some(name) if name.is_empty() && event.failed() => "...".to_string(),
                Some(name) => quoted(name),
            };
            format!("prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, {}, {len}, {name})", pointer(*addr))
        }
        VmOp::SetMm { option, value } => {
            format!("prctl(PR_SET_MM, {}, {}, ...)", flags::set_mm(*option), pointer(Addr(*value)))
        }
        VmOp::SeccompListenerBusy => {
            "seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, ...)".to_string()
        }
        VmOp::Fork { child_mm, child_sp, is_thread, .. } => {
            let stack = format!("child_stack={}, ", pointer(*child_sp));
            match (*is_thread, *child_mm == event.mm) {
                // One requires the other (kernel/fork.c, copy_process).
                (true, _) => format!("clone({stack}flags=CLONE_VM|CLONE_SIGHAND|CLONE_THREAD|...)"),
                (false, true) => format!("clone({stack}flags=CLONE_VM|...)"),
                // The child's stack pointer is a copy of its parent's.
                (false, false) => "clone(...)".to_string(),
            }
        }
        VmOp::Exec { exe, .. } => {
            let exe =
                exe.as_ref().map_or_else(|| "...".to_string(), |exe| format!("{}, ...", quoted(&exe.path)));
            format!("execve({exe})")
        }
        VmOp::Exit { code, group_dead } => ending(*code, *group_dead),
        VmOp::Rename => format!("--- renamed {} ---", quoted(&event.task.comm)),
    }
}

/// `+++ exited with 0 +++`, `+++ killed by SIGSEGV (core dumped) +++`; a thread's end says so.
fn ending(code: i32, group_dead: bool) -> String {
    let who = if group_dead { "" } else { "thread " };
    let core = if code & CORE != 0 { " (core dumped)" } else { "" };
    match (wait_status::exit_code(code), wait_status::signal(code)) {
        (Some(code), _) => format!("+++ {who}exited with {code} +++"),
        (None, Some(by)) => format!("+++ {who}killed by {}{core} +++", flags::signal(by)),
        (None, None) => format!("+++ {who}ended +++"),
    }
}

/// What comes after `=`: `0`, `0x7f0000000000`, `-1 ENOMEM (Cannot allocate memory)`; None for
/// what is no call.
pub fn result(event: &VmEvent) -> Option<String> {
    if matches!(event.op, VmOp::Exit { .. } | VmOp::Rename) {
        return None;
    }
    if event.failed() {
        let number = event.ret.wrapping_neg();
        return Some(match errno::errno(number) {
            Some((name, words)) => format!("-1 {name} ({words})"),
            None => format!("-1 (errno {number})"),
        });
    }
    Some(match event.op {
        VmOp::Mmap { .. }
        | VmOp::Mremap { .. }
        | VmOp::Brk { .. }
        | VmOp::Shmat { .. }
        | VmOp::MapShadowStack { .. } => format!("{:#x}", event.ret),
        _ => event.ret.to_string(),
    })
}

/// Name of the error, for JSON.
pub fn error(event: &VmEvent) -> Option<String> {
    let number = event.ret.wrapping_neg();
    event.failed().then(|| errno::errno(number).map_or_else(|| number.to_string(), |(name, _)| name.into()))
}

/// The arguments by the names that the manual pages give them. Addresses are `"0x…"`, flags are
/// words as in [`call`]; what the record does not hold is left out.
pub fn arguments(event: &VmEvent) -> Map<String, Value> {
    let addr = |a: &Addr| Value::from(format!("{a}"));
    let value = match &event.op {
        VmOp::Mmap { addr: at, len, prot, flags, fd, offset, .. } => json!({
            "addr": addr(at), "length": len, "prot": flags::prot(*prot), "flags": flags::map(*flags),
            "fd": fd, "offset": offset,
        }),
        VmOp::Munmap { addr: at, len } => json!({"addr": addr(at), "length": len}),
        VmOp::Mremap { old, old_len, new_len, flags, new_addr } => json!({
            "old_address": addr(old), "old_size": old_len, "new_size": new_len,
            "flags": flags::mremap(*flags), "new_address": addr(new_addr),
        }),
        VmOp::Brk { requested, current } => {
            json!({"addr": addr(requested), "current": current.as_ref().map(addr)})
        }
        VmOp::Mprotect { addr: at, len, prot, pkey: None } => {
            json!({"addr": addr(at), "length": len, "prot": flags::prot(*prot)})
        }
        VmOp::Mprotect { addr: at, len, prot, pkey } => {
            json!({"addr": addr(at), "length": len, "prot": flags::prot(*prot), "pkey": pkey})
        }
        VmOp::Madvise { addr: at, len, advice } => {
            json!({"addr": addr(at), "length": len, "advice": flags::advice(*advice)})
        }
        VmOp::ProcessMadvise { pidfd, iovecs, advice } => {
            json!({"pidfd": pidfd, "vlen": iovecs, "advice": flags::advice(*advice)})
        }
        VmOp::Shmat { shmid, addr: at, flags, .. } => {
            json!({"shmid": shmid, "shmaddr": addr(at), "shmflg": flags::shm(*flags)})
        }
        VmOp::Shmdt { addr: at } => json!({"shmaddr": addr(at)}),
        VmOp::RemapFilePages { addr: at, len, pgoff, flags } => {
            json!({"addr": addr(at), "size": len, "pgoff": pgoff, "flags": flags::map(*flags)})
        }
        VmOp::IoSetup { nr_events, mapped } => {
            json!({"nr_events": nr_events, "ctx": mapped.map(|ring| addr(&ring.start))})
        }
        VmOp::IoDestroy { ctx } => json!({"ctx": addr(ctx)}),
        VmOp::MapShadowStack { addr: at, len, flags } => {
            json!({"addr": addr(at), "size": len, "flags": flags::shadow_stack(*flags)})
        }
        VmOp::SetVmaName { addr: at, len, name } => json!({
            "option": "PR_SET_VMA", "attr": "PR_SET_VMA_ANON_NAME", "addr": addr(at), "size": len,
            "name": name.as_ref().map(|name| String::from_utf8_lossy(name)),
        }),
        VmOp::SetMm { option, value } => {
            json!({"option": "PR_SET_MM", "attr": flags::set_mm(*option), "addr": addr(&Addr(*value))})
        }
        VmOp::Fork { child_pid, child_tid, child_mm, child_sp, is_thread, .. } => json!({
            "child_pid": child_pid, "child_tid": child_tid, "child_stack": addr(child_sp),
            "thread": is_thread, "shares_memory": *child_mm == event.mm,
        }),
        VmOp::Exec { exe, .. } => {
            json!({"exe": exe.as_ref().map(|exe| String::from_utf8_lossy(&exe.path))})
        }
        VmOp::Exit { code, group_dead } => {
            let (exit_code, signal) = (wait_status::exit_code(*code), wait_status::signal(*code));
            json!({"exit_code": exit_code, "signal": signal, "last_thread": group_dead})
        }
        VmOp::SeccompListenerBusy | VmOp::Rename => Value::Null,
    };
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
