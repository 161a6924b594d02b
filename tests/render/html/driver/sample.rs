//! Sample reports: two processes with names that try to break out of the page, and one with as many regions
//! as a process may have.

use std::collections::BTreeMap;
use vmaudit::report::model::*;

pub const MIB: u64 = 1 << 20;
pub const KIB: u64 = 1 << 10;
/// Would run if anything in it was taken for markup.
pub const HOSTILE: &str =
    "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>\u{202e}";

fn frame(module: &str, symbol: &str, file: Option<&str>) -> Frame {
    Frame {
        module: module.to_owned(),
        offset: "0x1234".to_owned(),
        symbol: Some(symbol.to_owned()),
        symbol_offset: Some(0x11),
        file: file.map(str::to_owned),
        line: file.map(|_| 57),
        ..Frame::default()
    }
}

fn stack(names: &[&str]) -> Stack {
    let mut frames = vec![frame("libc.so.6", "__mmap", None)];
    frames.extend(names.iter().map(|name| frame("program", name, Some("/src/program.c"))));
    frames.push(frame("program", "main", Some("/src/program.c")));
    Stack::new(frames, "complete")
}

struct Piece {
    start: u64,
    bytes: u64,
    rss: u64,
    prot: &'static str,
    category: &'static str,
    part: &'static str,
    instance: u64,
    stack: Option<u64>,
    path: Option<&'static str>,
}

fn region(p: &Piece) -> Region {
    Region {
        start: format!("{:#x}", p.start),
        end: format!("{:#x}", p.start + p.bytes),
        prot: p.prot.to_owned(),
        category: p.category.to_owned(),
        evidence: if p.stack.is_some() { "stack" } else { "kernel" }.to_owned(),
        virt: p.bytes,
        rss: p.rss,
        path: p.path.map(str::to_owned),
        part: p.part.to_owned(),
        instance: p.instance,
        origin: p.stack.map(|stack| Origin {
            event: 10 + p.instance,
            op: "mmap".to_owned(),
            tid: 101,
            comm: "worker".to_owned(),
            time_ns: 1_500_000_000 + p.instance * 100_000_000,
            stack: Some(stack),
            inherited_from: None,
        }),
        ..Region::default()
    }
}

fn row(id: &str, name: &str, regions: &[Region]) -> CategoryRow {
    let of = || regions.iter().filter(|r| r.category == id);
    let (virt, rss) = (of().map(|r| r.virt).sum::<u64>(), of().map(|r| r.rss).sum::<u64>());
    let writable = of().filter(|r| r.prot.contains('w')).map(|r| r.virt).sum();
    let pieces = of().count() as u64;
    CategoryRow {
        id: id.to_owned(),
        name: name.to_owned(),
        virt,
        rss,
        writable,
        unused: virt - rss,
        regions: pieces,
        pieces,
        ..CategoryRow::default()
    }
}

fn process(pid: i32, comm: &str, regions: Vec<Region>) -> Process {
    let names = [
        ("glibc-arena", "glibc malloc arenas"),
        ("jemalloc", "jemalloc"),
        ("app-mmap", "the program's own mappings"),
        ("loader", "program and libraries"),
    ];
    let mut categories: Vec<CategoryRow> =
        names.iter().map(|(id, name)| row(id, name, &regions)).filter(|row| row.virt > 0).collect();
    categories.sort_by_key(|row| std::cmp::Reverse(row.unused));
    let sum = |of: fn(&CategoryRow) -> u64| categories.iter().map(of).sum::<u64>();
    let (virt, rss) = (sum(|row| row.virt), sum(|row| row.rss));
    let totals = Totals {
        virt,
        rss,
        unused: virt - rss,
        writable: sum(|row| row.writable),
        vm_peak: virt + MIB,
        ..Totals::default()
    };
    Process {
        pid,
        comm: comm.to_owned(),
        exe: "/opt/program".to_owned(),
        cmdline: vec!["program".to_owned(), HOSTILE.to_owned()],
        exit_code: Some(0),
        threads_seen: 2,
        totals,
        coverage: Coverage { traced: virt, ..Coverage::default() },
        categories,
        regions,
        zero_ns: 1_000_000_000,
        wall_ns: Some(2_000_000_000),
        residency: "pagemap-scan".to_owned(),
        snapshot: "exit".to_owned(),
        ..Process::default()
    }
}

fn point(t_ns: u64, virt: u64, rss: Option<u64>) -> TimelinePoint {
    TimelinePoint {
        t_ns,
        virt,
        rss,
        by_category: BTreeMap::from([
            ("jemalloc".to_owned(), virt / 4),
            ("glibc-arena".to_owned(), virt - virt / 4),
        ]),
        rss_by_category: BTreeMap::from([("jemalloc".to_owned(), rss.unwrap_or(0))]),
    }
}

/// 101 MiB in five regions: an arena of two parts, 64 MiB; jemalloc, 36 MiB; the program, 1 MiB.
pub fn two_processes() -> Report {
    let arena = 0x7f00_0000_0000;
    let piece = |start, bytes, rss| Piece {
        start,
        bytes,
        rss,
        prot: "rw-p",
        category: "jemalloc",
        part: "",
        instance: 0,
        stack: None,
        path: None,
    };
    let image = |start, instance| Piece {
        prot: "r-xp",
        category: "loader",
        part: "image",
        path: Some("/opt/program"),
        instance,
        ..piece(start, 512 * KIB, 512 * KIB)
    };
    let regions = [
        image(0x5500_0000_0000, 0),
        image(0x5500_0008_0000, 0),
        Piece {
            category: "glibc-arena",
            part: "arena used part",
            instance: 1,
            stack: Some(0),
            ..piece(arena, 132 * KIB, 96 * KIB)
        },
        Piece {
            prot: "---p",
            category: "glibc-arena",
            part: "arena reserved part",
            instance: 1,
            stack: Some(0),
            ..piece(arena + 132 * KIB, 64 * MIB - 132 * KIB, 0)
        },
        Piece {
            part: "extent",
            instance: 2,
            stack: Some(1),
            path: Some(HOSTILE),
            ..piece(0x7f10_0000_0000, 36 * MIB, 9 * MIB)
        },
    ];
    let mut main = process(4001, HOSTILE, regions.iter().map(region).collect());
    main.findings = vec![Finding {
        category: "glibc-arena".to_owned(),
        virt: 64 * MIB,
        rss: 96 * KIB,
        unused: 64 * MIB - 96 * KIB,
        regions: 1,
        stack: Some(0),
        title: format!("glibc malloc arena {HOSTILE}"),
        why: format!("the first malloc of a thread reserves a heap {HOSTILE}"),
        fix: vec![Fix {
            knob: "MALLOC_ARENA_MAX=1".to_owned(),
            saves_virt: 63 * MIB,
            saves_rss: 0,
            note: HOSTILE.to_owned(),
        }],
        ranges: vec![Range { start: format!("{arena:#x}"), end: format!("{:#x}", arena + 64 * MIB) }],
        threads: vec![Thread { tid: 101, comm: HOSTILE.to_owned() }],
        story: Some("mmap(128 MiB, PROT_NONE, NORESERVE)".to_owned()),
        ..Finding::default()
    }];
    main.timeline = vec![
        point(100_000_000, 20 * MIB, Some(MIB)),
        point(800_000_000, 80 * MIB, None),
        point(2_000_000_000, 101 * MIB, Some(10 * MIB)),
    ];
    main.peak = Some(Peak { virt: 110 * MIB, t_ns: 900_000_000, ..Peak::default() });
    let check = |id: &str, used, limit, state: &str| Check {
        id: id.to_owned(),
        used,
        limit,
        counts_virt: true,
        state: state.to_owned(),
        text: format!("{id} {HOSTILE}"),
    };
    main.verdict = Some(Verdict {
        matters: true,
        text: format!("VIRT matters here {HOSTILE}"),
        checks: vec![
            check("address-space", 101 * MIB, Some(110 * MIB), "near"),
            check("mappings", 5, Some(65_530), "free"),
            check("page-tables", MIB, None, "free"),
        ],
    });
    main.gaps = vec![HOSTILE.to_owned()];
    let child = process(4002, "child", vec![region(&image(0x5500_0000_0000, 0))]);
    let container = Container {
        name: HOSTILE.to_owned(),
        cgroup: "/sys".to_owned(),
        virt: 101 * MIB,
        processes: 2,
        memory: Some(CgroupMemory { current: Some(MIB), ..CgroupMemory::default() }),
        ..Container::default()
    };
    Report {
        schema: 1,
        backend: "bpf".to_owned(),
        events: Events { seen: 1284, ..Events::default() },
        containers: vec![container],
        processes: vec![main, child],
        stacks: vec![stack(&["worker", "load_config"]), stack(&["game", HOSTILE])],
        ..Report::default()
    }
}

/// 65,000 regions of one page or a few, each with a call of its own.
pub fn many_regions() -> Report {
    let regions = (0..65_000u64).map(|i| {
        let virt = (1 + i % 3) * 4 * KIB;
        let mut region = region(&Piece {
            start: 0x7e00_0000_0000 + i * 16 * KIB,
            bytes: virt,
            rss: if i % 2 == 0 { 4 * KIB } else { 0 },
            prot: if i % 2 == 0 { "rw-p" } else { "r--p" },
            category: if i % 5 == 0 { "jemalloc" } else { "app-mmap" },
            part: "mapping",
            instance: i,
            stack: Some(i % 2),
            path: None,
        });
        if let Some(origin) = &mut region.origin {
            origin.time_ns = 1_000_000_000 + i * 12_345;
        }
        region
    });
    let process = process(4003, "manymaps", regions.collect());
    Report {
        schema: 1,
        backend: "bpf".to_owned(),
        processes: vec![process],
        stacks: vec![stack(&["worker"]), stack(&["game", "reader"])],
        ..Report::default()
    }
}
