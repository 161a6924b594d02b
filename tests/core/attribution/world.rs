//! `attribution::world`, and rules that examine the process as a whole.

use crate::case::*;
use vmaudit::attribution::world::World;
use vmaudit::ledger::Origin;
use vmaudit::model::{Addr, AddrRange, VmOp};

/// Numbers without an order (xorshift).
fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    }
}

#[test]
fn reservations_are_found_by_what_lies_in_them() {
    let mut number = numbers(7);
    for _ in 0..50 {
        let mut case = Case::new();
        let stack = case.stack(&["libc.so.6!mmap", "program!main"]);
        for _ in 0..number(60) {
            let prot = if number(4) == 0 { RW } else { NONE };
            let call = case.mmap(PID, (1 + number(40)) * KIB, (prot, ANON), stack);
            case.record(call).ret = if number(9) == 0 { -12 } else { (number(100) * KIB) as i64 };
        }
        let input = case.input();
        let world = World::new(&input);
        for _ in 0..60 {
            let range = AddrRange::from_len(Addr(number(120) * KIB), (1 + number(8)) * KIB);
            let holds = |op: &VmOp, ret: i64| match *op {
                VmOp::Mmap { len, prot: NONE, .. } => {
                    ret >= 0 && AddrRange::from_len(Addr(ret as u64), len).contains_range(range)
                }
                _ => false,
            };
            let all = case.reconciled.origins.iter().enumerate();
            let expected: Vec<usize> = all.filter(|(_, r)| holds(&r.op, r.ret)).map(|(at, _)| at).collect();
            let mut found: Vec<usize> = world.reservations_containing(range).map(|(at, _)| at).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{range:?}");
        }
    }
}

/// madvise cuts the bss in two kinds of pieces; all of them are the program's, up to the first gap.
#[test]
fn the_bss_of_the_program_may_be_in_pieces() {
    const AT: u64 = 0x5500_0000_0000;
    let mut case = Case::new();
    case.vma((AT, AT + 0x1000), "r-xp", "/opt/program", Origin::Preexisting);
    case.vma((AT + 0x1000, AT + 0x2000), "rw-p", "/opt/program", Origin::Preexisting);
    let piece = |n: u64| (AT + (2 + n) * 0x1000, AT + (3 + n) * 0x1000);
    for n in (0..40).chain(50..60) {
        case.vma(piece(n), "rw-p", "", Origin::Preexisting);
    }
    let found = case.attribute();
    assert!(found.pieces.iter().all(|p| p.part != "bss"), "which is the program, only its heap shows");
    case.vma(piece(70), "rw-p", "[heap]", Origin::Preexisting);
    let found = case.attribute();
    let of_loader: Vec<_> = found.pieces.iter().filter(|p| p.category.id == "loader").collect();
    assert_eq!(of_loader.len(), 2 + 40);
    assert!(of_loader[2..].iter().all(|p| p.part == "bss"));
    let others: Vec<u64> =
        found.pieces.iter().filter(|p| p.category.id == "unknown").map(|p| p.range.start.0).collect();
    assert_eq!(others, (50..60).map(|n| piece(n).0).collect::<Vec<_>>());
}

/// The program headers decide, not what lies above a library's data; a VMA may hold more than the bss.
#[test]
fn the_bss_of_a_library_ends_where_its_program_headers_say() {
    const AT: u64 = 0x7f00_0000_0000;
    let reported = |known: bool| {
        let mut case = Case::new();
        let mut vma = |from: u64, to: u64, perms: &str, name: &str| {
            case.vma((AT + from, AT + to), perms, name, Origin::Preexisting);
        };
        vma(0, 0x1000, "r-xp", "/usr/lib/libfoo.so");
        vma(0x1000, 0x2000, "rw-p", "/usr/lib/libfoo.so");
        vma(0x2000, 0x9000, "rw-p", "");
        vma(0x10_0000, 0x10_1000, "r-xp", "/usr/lib/libbar.so");
        vma(0x10_1000, 0x10_2000, "rw-p", "/usr/lib/libbar.so");
        vma(0x10_2000, 0x10_4000, "rw-p", "");
        vma(0x20_0000, 0x20_1000, "r-xp", "/usr/lib/libbaz.so");
        vma(0x20_1000, 0x20_2000, "r--p", "/usr/lib/libbaz.so");
        vma(0x20_2000, 0x20_3000, "r--p", "");
        vma(0x20_3000, 0x20_5000, "rw-p", "");
        if known {
            let bss = [(0x2000, 0x4000), (0x20_2000, 0x20_5000)];
            case.observations.code.bss = bss.map(|(from, to)| AddrRange::new(AT + from, AT + to)).into();
        }
        let found = case.attribute();
        let anonymous = pieces(&found).into_iter().filter(|piece| piece.3 != "image");
        anonymous.map(|(from, to, id, _, evidence)| (from - AT, to - AT, id, evidence)).collect::<Vec<_>>()
    };
    let all = [
        (0x2000, 0x4000, "loader", "header"),
        (0x4000, 0x9000, "unknown", "shape"),
        (0x10_2000, 0x10_4000, "unknown", "shape"),
        (0x20_2000, 0x20_3000, "loader", "header"),
        (0x20_3000, 0x20_5000, "loader", "header"),
    ];
    assert_eq!(reported(true), all);
    assert!(reported(false).iter().all(|piece| piece.2 == "unknown"), "{:x?}", reported(false));
}

/// Regions of 1 GiB, reserved from the start on and opened from there to the end, in one piece or more.
#[test]
fn regions_of_tcmalloc_are_whole() {
    const GIB: u64 = 1 << 30;
    const AT: u64 = 0x3f00_0000_0000;
    let mut case = Case::new();
    for (n, hole) in [(0, 0), (1, 0), (2, 0x1000), (3, 0)] {
        let start = AT + n * GIB;
        let (opened, half) = (start + GIB - 8 * MIB, start + GIB - 4 * MIB);
        case.vma((start, opened), "---p", "", Origin::Preexisting);
        case.vma((opened, half), "rw-p", "", Origin::Preexisting);
        case.vma((half + hole, start + GIB), "rw-p", "", Origin::Preexisting);
    }
    let found = case.attribute();
    let regions = found.pieces.iter().filter(|p| p.category.id == "tcmalloc").map(|p| p.range.start.0 / GIB);
    let mut whole: Vec<u64> = regions.map(|region| region - AT / GIB).collect();
    whole.dedup();
    assert_eq!(whole, [0, 1, 3]);
    let row = found.rows.iter().find(|row| row.category.id == "tcmalloc").expect("a row");
    assert_eq!((row.instances, row.pieces), (3, 9));
}
