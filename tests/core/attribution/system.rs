//! The rules on devices, kernel buffers, names and stacks, on hand-built cases: what no machine here has
//! (GPUs), or what only other kernels show (names in maps).

use crate::case::*;
use vmaudit::attribution::Attributed;
use vmaudit::ledger::Origin;
use vmaudit::model::{Addr, AddrRange, VmFlags, VmaDetail};

const AT: u64 = 0x7f00_0000_0000;

fn detail(case: &mut Case, range: (u64, u64), flags: &str) {
    case.observations.details.vmas.push(VmaDetail {
        range: AddrRange::new(range.0, range.1),
        flags: VmFlags::parse(flags.as_bytes()),
        pss: 0,
        page_size: 4096,
        hugetlb: 0,
    });
}

/// The category, part and evidence of one mapping of this name and these flags.
fn named(name: &str, perms: &str, flags: &str) -> (String, String, &'static str) {
    let mut case = Case::new();
    case.vma((AT, AT + MIB), perms, name, Origin::Preexisting);
    detail(&mut case, (AT, AT + MIB), flags);
    let found = case.attribute();
    let piece = &found.pieces[0];
    (piece.category.id.to_string(), piece.part.to_string(), piece.evidence.as_str())
}

/// Where the kernel places the scavenger's index directly above the summaries, tables of more than a MiB lie
/// between the two: both are Go's all the same. Go 1.19 with cgo, as it was found.
#[test]
fn gos_summaries_and_index_may_be_neighbours() {
    let mut case = Case::new();
    case.vma((0xc0_0000_0000, 0xc0_0040_0000), "rw-p", "", Origin::Preexisting);
    case.vma((0xc0_0040_0000, 0xc0_0400_0000), "---p", "", Origin::Preexisting);
    let bounds: [(u64, &str); 16] = [
        (0x7f60_341e_e000, "---p"), // a thread's stack with its guard
        (0x7f60_341e_f000, "rw-p"),
        (0x7f60_349e_f000, "rw-p"), // the index of arenas, in three pieces for MADV_HUGEPAGE's sake
        (0x7f60_36c0_0000, "rw-p"),
        (0x7f60_3700_0000, "rw-p"),
        (0x7f60_3700_7000, "---p"), // summaries
        (0x7f60_4758_0000, "rw-p"),
        (0x7f60_4758_1000, "---p"),
        (0x7f60_5943_0000, "rw-p"),
        (0x7f60_5943_1000, "---p"),
        (0x7f60_5b80_6000, "rw-p"),
        (0x7f60_5b80_7000, "---p"),
        (0x7f60_5bc0_0000, "rw-p"), // tables
        (0x7f60_5bd2_0000, "---p"), // the scavenger's index
        (0x7f60_5bda_0000, "rw-p"),
        (0x7f60_5bda_1000, "---p"),
    ];
    let ends = bounds.iter().skip(1).map(|&(start, _)| start).chain([0x7f60_5be2_0000]);
    for (&(start, perms), end) in bounds.iter().zip(ends) {
        case.vma((start, end), perms, "", Origin::Preexisting);
    }
    let found = case.attribute();
    let of = |part: &str| -> u64 {
        let pieces = found.pieces.iter().filter(|p| (p.category.id, p.part) == ("go-heap", part));
        pieces.map(|p| p.range.len()).sum()
    };
    assert_eq!(of("heap arena") + of("heap arena, reserved"), 64 * MIB);
    let (summaries, index) = (0x7f60_5bc0_0000 - 0x7f60_3700_7000, MIB);
    assert_eq!(of("page summaries and scavenger's index"), summaries + index);
}

#[test]
fn devices_by_their_files() {
    let devices = [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/dri/renderD128",
        "/dev/kfd",
        "/dev/mem",
        "/dev/fb0",
        "/dev/vfio/12",
        "/dev/infiniband/uverbs0",
        "/dev/snd/pcmC0D0p",
        "anon_inode:i915.gem",
        "anon_inode:kvm-vcpu:0",
        "/dmabuf:",
        "/drm mm object (deleted)",
        "/i915 (deleted)",
        "/dev/some-new-accelerator",
    ];
    for name in devices {
        assert_eq!(named(name, "rw-s", "rd wr sh mr mw ms pf io dc de dd").0, "device", "{name}");
    }
    let buffer = named("anon_inode:[perf_event]", "rw-s", "rd wr sh mr mw ms pf io dc de dd");
    assert_eq!((buffer.0.as_str(), buffer.1.as_str()), ("kernel-buffer", "perf events"));
    assert_eq!(named("anon_inode:[io_uring]", "rw-s", "rd wr sh mr mw ms de mm").0, "io-uring");
    assert_eq!(named("anon_inode:[something-new]", "rw-s", "rd wr sh").0, "kernel-buffer");
    for name in ["/dev/shm/x", "/dev/hugepages/x", "/dev/mqueue/x", "/home/dev/x", "/development"] {
        assert_ne!(named(name, "rw-s", "rd wr sh mr mw me ms").0, "device", "{name}");
    }
    // a file that is nowhere below /dev, but maps no memory of the machine
    let resource = "/sys/devices/pci0000:00/0000:00:02.0/resource0";
    assert_eq!(named(resource, "rw-s", "rd wr sh mr mw ms pf io").2, "kernel");
    assert_eq!(named(resource, "rw-s", "rd wr sh mr mw ms pf io").0, "device");
    assert_eq!(named(resource, "rw-s", "rd wr sh mr mw ms").0, "file");
}

#[test]
fn a_gpus_reservation_is_recognised_by_the_requesting_library_never_by_its_size() {
    let tib = 1024 * 1024 * MIB;
    let reserve = |stack: &[&str]| {
        let mut case = Case::new();
        let stack = case.stack(stack);
        let origin = case.mmap(PID, tib, (NONE, ANON | NORESERVE), stack);
        case.vma((0x10_0000_0000, 0x10_0000_0000 + tib), "---p", "", Origin::Event(origin));
        case.attribute()
    };
    for library in ["libcuda.so.1", "libhsa-runtime64.so.1"] {
        let own = format!("{library}@0x2a3b4c");
        let found = reserve(&["libc.so.6!__mmap", &own, "app!main"]);
        assert_eq!(found.pieces[0].category.id, "device", "{library}");
        let title = &found.findings[0].title;
        assert!(title.contains("CUDA") || title.contains("ROCm"), "{title}");
    }
    let found = reserve(&["libc.so.6!__mmap", "app!reserve_everything", "app!main"]);
    assert_eq!(found.pieces[0].category.id, "app-mmap");
    let mut case = Case::new();
    case.vma((0x10_0000_0000, 0x10_0000_0000 + tib), "---p", "", Origin::Preexisting);
    case.vma((AT, AT + MIB), "r-xp", "/usr/lib/libcuda.so.1", Origin::Preexisting);
    assert_eq!(virt(&case.attribute(), "unknown"), tib, "a snapshot has no stack");
}

#[test]
fn hugetlb_is_a_flag_whatever_the_name() {
    let flags = "rd wr sh mr mw me ms de ht";
    let part = |name| named(name, "rw-s", flags);
    assert_eq!(part("/memfd:x (deleted)").1, "memfd (MFD_HUGETLB)");
    assert_eq!(part("/SYSV00000000 (deleted)").1, "System V segment (SHM_HUGETLB)");
    assert_eq!(part("/mnt/huge/pool").1, "file on hugetlbfs");
    assert_eq!(part("/anon_hugepage (deleted)").1, "MAP_HUGETLB");
    for name in ["/memfd:x (deleted)", "/mnt/huge/pool"] {
        assert_eq!((part(name).0.as_str(), part(name).2), ("hugetlb", "kernel"));
    }
    assert_eq!(named("/memfd:x (deleted)", "rw-s", "rd wr sh").0, "memfd");
}

#[test]
fn huge_pages_in_use_are_said_though_rss_is_0() {
    let mut case = Case::new();
    case.vma((AT, AT + 8 * MIB), "rw-p", "/anon_hugepage (deleted)", Origin::Preexisting);
    detail(&mut case, (AT, AT + 8 * MIB), "rd wr ht");
    case.observations.details.vmas[0].hugetlb = 6 * MIB;
    let found = case.attribute();
    let huge = finding(&found, "hugetlb");
    assert!(huge.why.contains("6.0 MiB of it are in use"), "{}", huge.why);
    assert_eq!(huge.fix[0].saves_virt, 2 * MIB);
}

#[test]
fn names_from_maps_and_from_refused_calls() {
    // as a kernel with CONFIG_ANON_VMA_NAME shows them
    assert_eq!(named("[anon:frame pool]", "rw-p", "rd wr").0, "app-mmap");
    assert_eq!(named("[anon:frame pool]", "rw-p", "rd wr").2, "name");
    assert_eq!(named("[anon:stack_and_tls:4711]", "rw-p", "rd wr").0, "thread-stack");
    assert_eq!(named("[anon:.bss]", "rw-p", "rd wr").0, "loader");

    let mut case = Case::new();
    case.vma((AT, AT + 4 * MIB), "rw-p", "[anon:frame pool]", Origin::Preexisting);
    case.vma((AT + 8 * MIB, AT + 9 * MIB), "rw-p", "[anon:dalvik-main space]", Origin::Preexisting);
    let found = case.attribute();
    let [only] = found.findings.as_slice() else { panic!("{:?}", found.findings) };
    assert_eq!(only.title, "mappings named \u{201c}frame pool\u{201d}, \u{201c}dalvik-main space\u{201d}");

    // without it, the traced call alone knows; bytes that are no text stay on their line
    let mut case = Case::new();
    let stack = case.stack(&["libc.so.6!__mmap", "app!open_pool", "app!main"]);
    let origin = case.mmap(PID, 4 * MIB, (RW, ANON), stack);
    case.name(origin, (AT, AT + 4 * MIB), b"pool\n\xff\x1b[2J");
    case.vma((AT, AT + 4 * MIB), "rw-p", "", Origin::Event(origin));
    let found = case.attribute();
    assert_eq!(found.pieces[0].evidence.as_str(), "name");
    let title = &found.findings[0].title;
    assert!(title.starts_with("memory named \u{201c}pool") && !title.contains(['\n', '\u{1b}']), "{title}");
    assert!(found.findings[0].why.contains("open_pool"), "{}", found.findings[0].why);

    // an allocator's own memory is its own, whatever it is called
    let mut case = Case::new();
    let stack = case.stack(&["libc.so.6!__mmap", "app!je_pages_map", "app!je_extent_alloc_mmap", "app!main"]);
    let origin = case.mmap(PID, 4 * MIB, (RW, ANON | NORESERVE), stack);
    case.name(origin, (AT, AT + 4 * MIB), b"some pool");
    case.vma((AT, AT + 4 * MIB), "rw-p", "", Origin::Event(origin));
    assert_eq!(virt(&case.attribute(), "jemalloc"), 4 * MIB);
}

/// Stacks between hidden guards: merged by the kernel, cut by what PAGEMAP_SCAN shows.
#[test]
fn hidden_guards_cut_merged_stacks() {
    let (page, whole) = (4 * KIB, 64 * KIB + 4 * KIB);
    let mut case = Case::new();
    case.vma((AT, AT + 3 * whole), "rw-p", "", Origin::Preexisting);
    detail(&mut case, (AT, AT + 3 * whole), "rd wr mr mw me gu ac nh");
    for n in 0..3 {
        case.observations.details.guards.push(AddrRange::new(AT + n * whole, AT + n * whole + page));
    }
    // the second has a living thread, the others' have exited
    case.live_thread(PID, 0x7ffc_0000_0000);
    case.live_thread(PID + 1, AT + 2 * whole - 0x100);
    case.observations.thread_blocks.ended = [0, 2].map(|n| Addr(AT + (n + 1) * whole - 0x900)).into();
    let found = case.attribute();
    let parts: Vec<(&str, u64)> = found.pieces.iter().map(|p| (p.part, p.range.len())).collect();
    let left = "stack of an exited thread";
    let expected = [("guard", page), (left, 64 * KIB), ("guard", page), ("thread stack", 64 * KIB)];
    assert_eq!(parts[..4], expected);
    assert_eq!(found.rows[0].instances, 3);
    assert_eq!(found.pieces[3].thread, Some(PID + 1));
    assert_eq!(found.findings[0].ranges.len(), 3, "a guard and its stack are one range");

    // what smaps does not call a stack is not cut and not claimed
    let mut case = Case::new();
    case.vma((AT, AT + 3 * whole), "rw-p", "", Origin::Preexisting);
    detail(&mut case, (AT, AT + 3 * whole), "rd wr mr mw me gu nr");
    case.observations.details.guards.push(AddrRange::new(AT, AT + page));
    assert_eq!(virt(&case.attribute(), "unknown"), 3 * whole);
}

#[test]
fn an_interceptor_is_not_the_requesting_function() {
    let map = |stack: &[&str]| -> Attributed {
        let mut case = Case::new();
        let stack = case.stack(stack);
        let origin = case.mmap(PID, 64 * MIB, (RW, ANON), stack);
        case.vma((AT, AT + 64 * MIB), "rw-p", "", Origin::Event(origin));
        case.attribute()
    };
    let own = map(&["libc.so.6!__mmap", "libasan.so.8!__interceptor_mmap", "app!open_table", "app!main"]);
    assert_eq!(own.pieces[0].category.id, "app-mmap");
    let data = map(&["libasan.so.8!__sanitizer::internal_mmap", "libasan.so.8!__asan::Init", "app!_start"]);
    assert_eq!(data.pieces[0].category.id, "sanitizer-shadow");
    let block = map(&[
        "libasan.so.8!__sanitizer::internal_mmap",
        "libasan.so.8!__sanitizer::LargeMmapAllocator<X>::Allocate",
        "libasan.so.8!__interceptor_malloc",
        "app!open_table",
        "app!main",
    ]);
    assert_eq!(block.pieces[0].part, "large block of its malloc");
    assert!(block.findings[0].stack.is_some(), "who called malloc is worth showing");
}
