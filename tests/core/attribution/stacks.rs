//! What smaller stacks save where the C library keeps those of threads that have ended.

use crate::case::*;
use vmaudit::ledger::Origin;
use vmaudit::model::Addr;
use vmaudit::model::observation::StackLists;

const EACH: u64 = 8_392_704;

/// Four stacks of 8 MiB fill the cache, of 1 MiB it holds all of `threads`. Two callers of pthread_create share it.
fn promised(threads: i32) -> Vec<(u64, String)> {
    let mut case = Case::new();
    let callers = ["program!pool", "program!other"]
        .map(|caller| case.stack(&["libc.so.6!__mmap+0x13", "libc.so.6!pthread_create+0x981", caller]));
    let mut cached = Vec::new();
    for n in 0..4u64 {
        let base = 0x7f37_0000_0000 + n * 16 * MIB;
        let origin = case.mmap(PID, EACH, (NONE, ANON | STACK), callers[usize::from(n == 3)]);
        case.record(origin).mprotect_calls = 1;
        case.vma((base, base + 4096), "---p", "", Origin::Event(origin));
        case.vma((base + 4096, base + EACH), "rw-p", "", Origin::Event(origin));
        cached.push(Addr(base + EACH - 0x900));
    }
    // the others ended, too, and their stacks are gone
    for n in 0..threads {
        let at = 0x7f37_0000_0000 + n as u64 * 16 * MIB;
        case.started_thread(4001 + n, at + EACH - 0x900, true);
    }
    case.observations.stack_limit = Some(8 * MIB);
    case.observations.thread_blocks.lists = Some(StackLists { cached, ..StackLists::default() });
    let found = case.attribute();
    let stacks = found.findings.iter().filter(|finding| finding.category.id == "thread-stack");
    let limits = stacks.flat_map(|finding| &finding.fix).filter(|fix| fix.knob.starts_with("ulimit -s"));
    limits.map(|fix| (fix.saves_virt, fix.note.clone())).collect()
}

#[test]
fn a_full_cache_holds_more_of_smaller_stacks_whoever_made_them() {
    let sum = |found: &[(u64, String)]| found.iter().map(|(saves, _)| saves).sum::<u64>();
    let four = promised(4);
    assert_eq!((four.len(), sum(&four)), (2, 28 * MIB), "there were no others: {four:?}");
    assert!(four.iter().all(|(_, note)| !note.contains("more")), "{four:?}");
    let twelve = promised(12);
    assert_eq!(sum(&twelve), (28 - 8) * MIB, "eight more fit in: {twelve:?}");
    assert!(
        twelve[0]
            .1
            .starts_with("figure for 1 MiB stacks, of which the C library then keeps up to 6.0 MiB more"),
        "{twelve:?}"
    );
    let many = promised(400);
    assert_eq!(sum(&many), 0, "36 more than four, and no saving is left: {many:?}");
}
