//! What the steps of a life did, in words.

use super::calls::{self, flags};
use super::units::exact_size;
use crate::ledger::{Change, LedgerPiece, LifeStep, RegionKind};
use crate::model::{Addr, AddrRange, VmEvent, VmOp, wait_status};
use crate::sys::abi::{MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_FREE, MADV_GUARD_INSTALL, MADV_REMOVE};

/// madvise that takes pages away.
pub(super) fn gives_back(advice: i32) -> bool {
    matches!(advice, MADV_DONTNEED | MADV_FREE | MADV_REMOVE | MADV_DONTNEED_LOCKED | MADV_GUARD_INSTALL)
}

/// The call that made a step; None where the step was no call.
pub(super) fn call_source(event: &VmEvent) -> Option<String> {
    match event.op {
        VmOp::Exit { .. } | VmOp::Rename => None,
        _ => Some(calls::call(event)),
    }
}

/// A step's name, and the sentence that says what it did to the page at `at`.
pub(super) fn step_in_words(step: &LifeStep, at: Addr) -> (&'static str, String) {
    let event = step.event.as_deref();
    let op = event.map_or("a call", |event| event.op.name());
    let content = |range: &AddrRange| match &step.after {
        Some(piece) => format!("{} of {}, {range}", exact_size(range.len()), describe(piece, at)),
        None => format!("{}, {range}", exact_size(range.len())),
    };
    match &step.change {
        Change::Mapped { range } => ("mapped", format!("mapped by {op}: {}", content(range))),
        Change::MappedBeforeUnmapReported { range } => (
            "mapped",
            format!(
                "mapped by {op}: {} (what was there before had been unmapped; that call is reported later)",
                content(range)
            ),
        ),
        Change::Replaced { range } => ("replaced", format!("replaced by {op}: {}", content(range))),
        Change::Unmapped => ("unmapped", unmapped(event, op)),
        Change::UnmappedEarlier => (
            "unmapped-earlier",
            format!("{op} is reported that unmapped it before the mapping above took its place"),
        ),
        Change::MovedAway { to, kept: false } => ("moved-away", format!("moved by {op} to {to}")),
        Change::MovedAway { to, kept: true } => (
            "moved-away",
            format!("its content moved by {op} to {to}; an empty mapping stays (MREMAP_DONTUNMAP)"),
        ),
        Change::MovedHere { from, range } => {
            ("moved-here", format!("moved here by {op} from {from}: {}", content(range)))
        }
        Change::Protected { from, to } if from == to => {
            ("protected", format!("protection set to {}{}, as it was", to, sharing(step)))
        }
        Change::Protected { from, to } => {
            let s = sharing(step);
            ("protected", format!("protection {from}{s} -> {to}{s}"))
        }
        Change::Advised => ("advised", advised(event)),
        Change::Named => ("named", named(event)),
        Change::Image => ("image", format!("mapped by the kernel for execve: {}", piece(step, at))),
        Change::Found => ("found", format!("mapped before tracing began: {}", piece(step, at))),
        Change::Inherited { parent } => {
            ("inherited", format!("copied by fork from process {parent}: {}", piece(step, at)))
        }
        Change::NotInherited { parent } => {
            let by = "kept back by MADV_DONTFORK or its driver";
            ("not-inherited", format!("not copied by fork from process {parent}: {by}"))
        }
        Change::Refused => ("refused", format!("{op} refused{}", why(event))),
        Change::Ended => ("ended", ended(event)),
        Change::Lost => ("lost", "events were lost here: a step may be missing".to_string()),
        Change::Resynced => ("resynced", format!("after the loss the kernel showed: {}", piece(step, at))),
        Change::Other => ("changed", format!("changed by {op}: {}", piece(step, at))),
    }
}

/// `rw-p anonymous memory`, `r-xp libc.so.6 at file offset 0x26000`.
fn describe(piece: &LedgerPiece, at: Addr) -> String {
    let prot = format!("{}{}", piece.prot, piece.sharing);
    let kind = match piece.kind {
        RegionKind::Anonymous => "anonymous memory",
        RegionKind::SharedAnonymous => "shared anonymous memory",
        RegionKind::File => "a file",
        RegionKind::Brk => "heap (brk)",
        RegionKind::Stack => "stack",
        RegionKind::SysvShm => "a SysV shared memory segment",
        RegionKind::AioRing => "an AIO ring",
        RegionKind::ShadowStack => "shadow stack",
        RegionKind::HugeTlb => "huge pages",
        RegionKind::Special => "a mapping of the kernel's",
    };
    match &piece.file {
        Some(file) if !file.path.is_empty() => {
            let path = String::from_utf8_lossy(&file.path);
            let deleted = if file.deleted { " (deleted)" } else { "" };
            if file.path.first() == Some(&b'[') {
                return format!("{prot} {path}");
            }
            let offset = piece.offset.wrapping_add(at.0.wrapping_sub(piece.range.start.0));
            format!("{prot} {path}{deleted}, here file offset {offset:#x}")
        }
        _ => format!("{prot} {kind}"),
    }
}

fn piece(step: &LifeStep, at: Addr) -> String {
    match &step.after {
        Some(piece) => {
            format!("{} of {}, {}", exact_size(piece.range.len()), describe(piece, at), piece.range)
        }
        None => "nothing".to_string(),
    }
}

fn sharing(step: &LifeStep) -> String {
    step.after.as_ref().map(|piece| piece.sharing.to_string()).unwrap_or_default()
}

fn unmapped(event: Option<&VmEvent>, op: &str) -> String {
    let range = match event {
        Some(event) if matches!(event.op, VmOp::Munmap { .. }) => event.ranges()[0],
        Some(event) if matches!(event.op, VmOp::Mremap { .. }) => {
            return "unmapped: mremap cut it off".to_string();
        }
        Some(event) if matches!(event.op, VmOp::Brk { .. }) => {
            return "unmapped: brk moved the end of the heap below it".to_string();
        }
        _ => AddrRange::default(),
    };
    if range.is_empty() {
        return format!("unmapped by {op}");
    }
    format!("unmapped by {op}: {}, {range}", exact_size(range.len()))
}

fn advised(event: Option<&VmEvent>) -> String {
    let Some(VmOp::Madvise { advice, .. }) = event.map(|event| &event.op) else {
        return "advised".to_string();
    };
    let name = flags::advice(*advice);
    let what = match advice {
        4 | 24 => "purged: the page is given back, the address stays mapped",
        8 => "may be purged: the kernel takes the page when memory is short, unless it is written to",
        9 => "purged: the page and its place in the file are given back",
        10 => "not to be copied by fork",
        11 => "to be copied by fork again",
        14 => "huge pages enabled",
        15 => "huge pages disabled",
        16 => "left out of core dumps",
        17 => "in core dumps again",
        18 => "to be zero in children",
        20 => "cold: to be reclaimed first",
        21 => "to be written to swap now",
        22 | 23 => "populated: pages made present ahead of use",
        102 => "a guard: touching the page is a fault",
        103 => "no guard any more",
        _ => "advised",
    };
    format!("{what} ({name})")
}

fn named(event: Option<&VmEvent>) -> String {
    match event.map(|event| &event.op) {
        Some(VmOp::SetVmaName { name: Some(name), .. }) => {
            let kept =
                if event.is_some_and(VmEvent::failed) { ", which this kernel cannot keep" } else { "" };
            format!("named {}{kept}", calls::quoted(name))
        }
        _ => "its name taken away".to_string(),
    }
}

fn why(event: Option<&VmEvent>) -> String {
    let number = event.map_or(0, |event| event.ret.wrapping_neg());
    match calls::errno::errno(number) {
        Some((name, words)) => format!(": {name} ({words})"),
        None => format!(": error {number}"),
    }
}

fn ended(event: Option<&VmEvent>) -> String {
    let Some(VmOp::Exit { code, .. }) = event.map(|event| &event.op) else {
        return "the process ended".to_string();
    };
    match (wait_status::exit_code(*code), wait_status::signal(*code)) {
        (Some(code), _) => format!("the process exited {code}, with the page still mapped"),
        (None, Some(by)) => {
            format!("the process was killed by {}, with the page still mapped", flags::signal(by))
        }
        (None, None) => "the process ended, with the page still mapped".to_string(),
    }
}
