//! What allocators' rules take for proof, and what they promise.

use crate::case::*;
use vmaudit::ledger::Origin;
use vmaudit::model::observation::{Block, BlockKind};
use vmaudit::model::{Addr, AddrRange, Completeness, VmOp};

const AT: u64 = 0x7f10_0000_0000;
const GIB: u64 = 1 << 30;

#[test]
fn a_name_is_of_the_part_that_it_was_given_to() {
    let mut case = Case::new();
    let stack = case.stack(&["libc.so.6!__mmap", "app!reserve", "app!main"]);
    let origin = case.mmap(PID, 12 * MIB, (NONE, ANON), stack);
    case.name(origin, (AT + 4 * MIB, AT + 8 * MIB), b"middle part");
    case.vma((AT, AT + 12 * MIB), "---p", "", Origin::Event(origin));
    let found = case.attribute();
    let evidence: Vec<&str> = found.pieces.iter().map(|p| p.evidence.as_str()).collect();
    assert_eq!(evidence, ["stack", "name", "stack"]);
    assert!(found.pieces.iter().all(|p| p.footprint.virt == 4 * MIB && p.category.id == "app-mmap"));
}

#[test]
fn an_empty_name_says_nothing() {
    let mut case = Case::new();
    case.vma((AT, AT + 4 * MIB), "rw-p", "[anon:]", Origin::Preexisting);
    let found = case.attribute();
    assert_eq!(virt(&found, "unknown"), 4 * MIB);
    assert!(!found.findings[0].title.contains('\u{201c}'), "{}", found.findings[0].title);
}

#[test]
fn what_is_named_after_v8_is_v8s() {
    let mut case = Case::new();
    let stack = case.stack(&["chromium@0x1000", "chromium@0x2000"]);
    let mut at = AT;
    for (name, part) in [
        (&b"v8-sandbox"[..], "sandbox and pointer cage"),
        (b"v8-pointer-table", "pointer tables"),
        (b"v8", "reservation that V8 named"),
    ] {
        let origin = case.mmap(PID, GIB, (NONE, ANON), stack);
        case.name(origin, (at, at + GIB), name);
        case.vma((at, at + GIB), "---p", "", Origin::Event(origin));
        let piece = case.attribute().pieces.pop().expect("a piece");
        assert_eq!((piece.category.id, piece.part, piece.evidence.as_str()), ("v8", part, "name"));
        at += 4 * GIB;
    }
    let origin = case.mmap(PID, GIB, (NONE, ANON), stack);
    case.name(origin, (at, at + GIB), b"v8 of the engine");
    case.vma((at, at + GIB), "---p", "", Origin::Event(origin));
    assert_eq!(case.attribute().pieces.pop().map(|p| p.category.id), Some("app-mmap"));
}

fn block(case: &mut Case, (start, len): (u64, u64), kind: BlockKind) {
    case.observations.blocks.push(Block { range: AddrRange::new(start, start + len), kind });
}

#[test]
fn a_block_that_advice_has_split_is_one() {
    let mut case = Case::new();
    case.vma((AT, AT + 0x1000), "rw-p", "", Origin::Preexisting);
    case.vma((AT + 0x1000, AT + 8 * MIB + 0x1000), "rw-p", "", Origin::Preexisting);
    block(&mut case, (AT, 8 * MIB + 0x1000), BlockKind::Large);
    let found = case.attribute();
    assert_eq!(found.findings[0].title, "large malloc block");
    let why = &found.findings[0].why;
    assert!(why.contains("asked for one block and has not touched all of it"), "{why}");
}

#[test]
fn what_realloc_added_is_part_of_the_block() {
    let mut case = Case::new();
    let malloc = case.stack(&["libc.so.6!__mmap", "libc.so.6@0x95f28", "libc.so.6!malloc", "p!main"]);
    let first = case.mmap(PID, 4 * MIB, (RW, ANON), malloc);
    let realloc = case.stack(&["libc.so.6!mremap", "libc.so.6!realloc", "p!main"]);
    let op = VmOp::Mremap { old: Addr(AT), old_len: 4 * MIB, new_len: 8 * MIB, flags: 1, new_addr: Addr(0) };
    let grown = case.call(PID, op, Some(realloc));
    case.merged_vma(
        "rw-p",
        "",
        &[(AT, AT + 4 * MIB, Origin::Event(first)), (AT + 4 * MIB, AT + 8 * MIB, Origin::Event(grown))],
    );
    block(&mut case, (AT, 8 * MIB), BlockKind::Large);
    let found = case.attribute();
    assert_eq!(
        (found.rows[0].category.id, found.rows[0].instances, found.rows[0].pieces),
        ("glibc-mmapped", 1, 2)
    );
}

#[test]
fn an_arena_of_pythons_is_one_by_its_pools_alone() {
    let mut case = Case::new();
    case.vma((AT, AT + 3 * MIB), "rw-p", "", Origin::Preexisting);
    block(&mut case, (AT + MIB, MIB), BlockKind::PoolArena);
    let found = case.attribute();
    let categories: Vec<&str> = found.pieces.iter().map(|p| p.category.id).collect();
    assert_eq!(categories, ["unknown", "python-arena", "unknown"]);
}

const JEMALLOC: &str = "/usr/lib/libjemalloc.so.2";
const MIMALLOC: &str = "/usr/lib/libmimalloc.so.3";

/// What a VMA of this length is taken for where these libraries are loaded.
fn taken_for(libraries: &[&str], (start, len): (u64, u64)) -> &'static str {
    let mut case = Case::new();
    for (n, library) in (0u64..).zip(libraries) {
        let at = 0x7f32_0000_0000 + n * MIB;
        case.vma((at, at + MIB), "r-xp", library, Origin::Preexisting);
    }
    case.vma((start, start + len), "rw-p", "", Origin::Preexisting);
    let found = case.attribute();
    found.pieces.iter().find(|p| p.range.start.0 == start).map_or("", |p| p.category.id)
}

#[test]
fn of_two_allocators_that_map_alike_neither_is_guessed() {
    let hinted = (0x210_6440_0000, GIB);
    let (large, small) = ((AT, 64 * MIB), (AT, 8 * MIB));
    assert_eq!(taken_for(&[JEMALLOC, MIMALLOC], hinted), "mimalloc");
    assert_eq!(taken_for(&[JEMALLOC, MIMALLOC], large), "unknown");
    assert_eq!(taken_for(&[JEMALLOC, MIMALLOC], small), "jemalloc");
    assert_eq!((taken_for(&[JEMALLOC], large), taken_for(&[MIMALLOC], large)), ("jemalloc", "mimalloc"));
    assert_eq!(taken_for(&[MIMALLOC], small), "unknown");
}

/// Polars: the first call makes both.
#[test]
fn jemallocs_bookkeeping_among_its_extents_is_said() {
    let mut case = Case::new();
    let outer = ["p!_rjem_je_arena_choose_hard", "p!_rjem_malloc", "p!main"];
    let base = [
        "libc.so.6!__mmap",
        "p!_rjem_je_pages_map",
        "p!_rjem_je_extent_alloc_mmap",
        "p!base_block_alloc.isra.0",
    ];
    let extent =
        ["libc.so.6!__mmap", "p!_rjem_je_pages_map", "p!_rjem_je_extent_alloc_mmap", "p!pac_alloc_real"];
    for (at, (inner, len)) in (0u64..).zip([(base, 4 * MIB), (extent, 2 * MIB)]) {
        let stack = case.stack(&[&inner[..], &outer[..]].concat());
        let origin = case.mmap(PID, len, (RW, ANON | NORESERVE), stack);
        case.vma((AT + at * GIB, AT + at * GIB + len), "rw-p", "", Origin::Event(origin));
    }
    let found = case.attribute();
    let [finding] = found.findings.as_slice() else { panic!("{:?}", found.findings) };
    assert_eq!(finding.title, "2 jemalloc extents");
    let said = "jemalloc asks the kernel for extents in growing steps (2, 2.5, 3 … MiB) and hands out pieces; what was not handed \
                out yet is mapped but never touched; 4.0 MiB of it are its own bookkeeping, which it never frees";
    assert_eq!(finding.why, said);
}

#[test]
fn smaller_arenas_of_mimalloc_still_hold_what_is_touched() {
    let mut case = Case::new();
    case.vma((0x7f32_0000_0000, 0x7f32_0010_0000), "r-xp", MIMALLOC, Origin::Preexisting);
    case.vma((0x210_6440_0000, 0x210_a440_0000), "rw-p", "", Origin::Preexisting);
    case.resident(0x210_6440_0000, 0x210_6440_0000 + 70 * MIB);
    let found = case.attribute();
    let fix = &finding(&found, "mimalloc").fix[0];
    assert_eq!((fix.saves_virt, fix.note.starts_with("at most")), (GIB - 128 * MIB, true));
}

#[test]
fn a_version_of_mimalloc_is_reported_where_it_is_known() {
    let why = |library: &str| {
        let mut case = Case::new();
        case.vma((0x7f32_0000_0000, 0x7f32_0010_0000), "r-xp", library, Origin::Preexisting);
        case.vma((AT, AT + 2304 * KIB), "rw-p", "", Origin::Preexisting);
        let found = case.attribute();
        finding(&found, "mimalloc").why.clone()
    };
    assert!(why("/usr/lib/libmimalloc.so.2.0").contains("before 2.1 takes segments"));
    assert!(why(MIMALLOC).contains("its page map"), "{}", why(MIMALLOC));
}

#[test]
fn arenas_without_noreserve_are_glibcs_by_their_stack() {
    let heap = |stack: &[&str], at: u64| {
        let mut case = Case::new();
        let stack = case.stack(stack);
        let origin = case.mmap(PID, 128 * MIB, (NONE, ANON), stack);
        case.vma((at, at + 0x21000), "rw-p", "", Origin::Event(origin));
        case.vma((at + 0x21000, at + 64 * MIB), "---p", "", Origin::Event(origin));
        case.attribute().rows[0].category.id
    };
    let stack =
        ["libc.so.6!__mmap", "libc.so.6@0x9f204", "libc.so.6@0x9f70c", "libc.so.6!malloc", "app!work"];
    assert_eq!(heap(&stack, 0x7f10_0400_0000), "glibc-arena");
    // the program's own reservation of that size
    assert_eq!(heap(&["libc.so.6!__mmap", "app@0x1000"], 0x7f10_0400_0000), "app-mmap");
}

#[test]
fn musls_mmap_is_the_programs_where_the_program_calls_it() {
    for libc in ["libc.so", "ld-musl-x86_64.so.1"] {
        let of = |inner: &[&str], prot: u64| {
            let mut case = Case::new();
            let stack: Vec<String> =
                inner.iter().map(|line| line.replace("musl!", &format!("{libc}!"))).collect();
            let stack: Vec<String> =
                stack.iter().map(|line| line.replace("musl@", &format!("{libc}@"))).collect();
            let stack = case.stack(&stack.iter().map(String::as_str).collect::<Vec<_>>());
            let origin = case.mmap(PID, 8 * MIB, (prot, ANON), stack);
            case.vma((AT, AT + 8 * MIB), if prot == RW { "rw-p" } else { "---p" }, "", Origin::Event(origin));
            case.attribute().rows[0].category.id
        };
        assert_eq!(of(&["musl!mmap64", "app!own", "app!main"], RW), "app-mmap", "{libc}");
        assert_eq!(of(&["musl!mmap64", "musl@0x28b79", "app!main"], RW), "musl-malloc", "{libc}");
        assert_eq!(of(&["musl!mmap64", "musl!pthread_create", "app!main"], NONE), "thread-stack", "{libc}");
        assert_ne!(of(&["musl!mmap64", "musl@0x6a07e", "app!main"], NONE), "loader", "{libc}");
    }
}

#[test]
fn a_lone_frame_of_the_c_library_is_no_caller() {
    let mut case = Case::new();
    case.completeness = Completeness::Incomplete;
    let stack = case.stack(&["libc.so.6@0x95f28"]);
    for n in 0..2 {
        let at = AT + n * 16 * MIB;
        let origin = case.mmap(PID, 8 * MIB, (RW, ANON), stack);
        case.vma((at, at + 8 * MIB), "rw-p", "", Origin::Event(origin));
    }
    block(&mut case, (AT, 8 * MIB), BlockKind::Large);
    let found = case.attribute();
    assert_eq!((virt(&found, "glibc-mmapped"), virt(&found, "unknown")), (8 * MIB, 8 * MIB));
    assert!(finding(&found, "glibc-mmapped").why.contains("asked for one block and"));
    assert!(finding(&found, "unknown").why.contains("its stack ends within the C library"));
}

#[test]
fn a_threshold_is_advised_where_large_blocks_may_be() {
    let heap = |step: u64, touched: u64| {
        let mut case = Case::new();
        case.vma((AT, AT + 16 * MIB), "rw-p", "[heap]", Origin::Preexisting);
        for at in (AT..AT + 16 * MIB).step_by(step as usize) {
            case.resident(at, at + touched);
        }
        let found = case.attribute();
        let finding = finding(&found, "glibc-main-heap");
        let knob = "MALLOC_MMAP_THRESHOLD_=131072";
        assert!(finding.fix.iter().all(|fix| fix.saves_virt == 0), "nobody knows how much");
        (finding.fix.iter().any(|fix| fix.knob == knob), finding.no_help.iter().any(|no| no.knob == knob))
    };
    assert_eq!(heap(MIB, 64 * KIB), (true, false));
    assert_eq!(heap(100 * KIB, 4 * KIB), (false, true));
    assert_eq!(heap(128 * KIB, 124 * KIB), (false, false), "not worth a knob");
}

/// A header proves which of jemalloc's memory is its own bookkeeping, where functions have no names: who made its arenas is
/// not known then, and nothing is promised of fewer.
#[test]
fn bookkeeping_of_jemalloc_is_known_by_its_header() {
    const HUGE: u64 = 2 * MIB;
    let mut case = Case::new();
    let stack = case.stack(&["libc.so.6!__mmap", "program!", "program!"]);
    for _ in 0..2 {
        case.mmap(PID, HUGE, (RW, ANON | NORESERVE), stack);
    }
    let origin = case.mmap(PID, HUGE, (RW, ANON | NORESERVE), stack);
    case.vma((AT, AT + HUGE), "rw-p", "", Origin::Event(origin));
    let snapshot = (AT + 8 * HUGE, AT + 16 * HUGE);
    case.vma(snapshot, "rw-p", "", Origin::Preexisting);
    let kind = BlockKind::Bookkeeping;
    let headers = [AT, snapshot.0, snapshot.0 + 2 * HUGE, snapshot.0 + 3 * HUGE, snapshot.0 + 6 * HUGE];
    let blocks = headers.map(|at| Block { range: AddrRange::from_len(Addr(at), HUGE), kind });
    case.observations.blocks = blocks.to_vec();
    let found = case.attribute();
    let own: Vec<&_> = found.pieces.iter().filter(|piece| piece.part == "jemalloc base (metadata)").collect();
    let evidence: Vec<_> = own.iter().map(|piece| (piece.range.start.0, piece.evidence.as_str())).collect();
    assert_eq!(evidence, headers.map(|at| (at, "header")));
    let finding =
        found.findings.iter().find(|f| f.title == "jemalloc's own bookkeeping").expect("one finding");
    let narenas = finding.fix.iter().find(|fix| fix.knob == "MALLOC_CONF=narenas:1").expect("a setting");
    assert_eq!((narenas.saves_virt, finding.fix.len()), (0, 1), "{:?}", finding.fix);
}

/// What V8 reserves beside its sandbox is told by the functions that do: neither pages of the heap, nor the cage of
/// compressed pointers, which lies inside of it.
#[test]
fn ranges_of_v8_are_what_their_functions_say() {
    let part = |function: &str| {
        let mut case = Case::new();
        let function = format!("libv8.so!v8::internal::{function}");
        let stack = case.stack(&[
            "libc.so.6!__mmap",
            "libv8.so!v8::base::OS::Allocate",
            "libv8.so!v8::internal::VirtualMemoryCage::InitReservation",
            &function,
            "libv8.so!v8::internal::IsolateGroup::Initialize",
        ]);
        let origin = case.mmap(PID, GIB, (NONE, ANON | NORESERVE), stack);
        case.vma((AT, AT + GIB), "---p", "", Origin::Event(origin));
        case.attribute().pieces[0].part
    };
    assert_eq!(part("TrustedRange::InitReservation"), "reserved as a whole");
    assert_eq!(part("ExternalEntityTable<v8::internal::JSDispatchEntry>::Initialize"), "pointer tables");
    assert_eq!(
        part("SegmentedTable<v8::internal::wasm::WasmCodePointerTableEntry>::Initialize"),
        "reserved as a whole"
    );
    assert_eq!(part("PtrComprCage::Initialize"), "cage of compressed pointers");
    assert_eq!(part("CodeRange::InitReservation"), "code range");
    let mut case = Case::new();
    let cppgc = [
        "libc.so.6!__mmap",
        "libv8.so!v8::base::OS::Allocate",
        "libv8.so!cppgc::internal::CagedHeap::CagedHeap",
    ];
    let stack = case.stack(&cppgc);
    let origin = case.mmap(PID, 16 * GIB, (NONE, ANON | NORESERVE), stack);
    case.vma((AT, AT + 16 * GIB), "---p", "", Origin::Event(origin));
    assert_eq!(case.attribute().pieces[0].part, "cage of the heap of C++ objects");
}
