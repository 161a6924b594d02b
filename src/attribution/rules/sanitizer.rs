//! Sanitizers: shadow memory and allocator space, terabytes of reservation by design.
//!
//! Their places are fixed at compile time (compiler-rt: asan_mapping.h, asan_allocator.h, tsan_platform.h,
//! msan.h, msan_allocator.cpp, lsan_allocator.h), so that an address alone proves them.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::{CallPath, Line};
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::code::{Code, Role};
use crate::model::{Addr, AddrRange};

pub const SANITIZER: Category = Category(&CategoryInfo {
    id: "sanitizer-shadow",
    color: 0xa3547c,
    name: "sanitizer shadow memory",
    one: "sanitizer shadow memory",
    many: "sanitizer mappings",
});

const SHADOW: &str = "shadow";
const GAP: &str = "gap that no access may hit";
const ALLOCATOR: &str = "allocator space";
const OTHER: &str = "the sanitizer's own data";
/// A `malloc` of the program that the sanitizer's allocator maps on its own.
const LARGE: &str = "large block of its malloc";

/// One sanitizer's address space on x86-64.
struct Layout {
    name: &'static str,
    /// VMAs begin at exactly these addresses …
    begins: &'static [u64],
    /// … and these belong to one: no other program maps both.
    mapped: &'static [u64],
    /// From … to.
    shadow: &'static [(u64, u64)],
    allocator: &'static [(u64, u64)],
}

const TIB4: u64 = 0x400_0000_0000;
/// Behind the allocator's space lie its size classes' tables.
const TABLES: u64 = 1 << 20;
/// Before LLVM 17 and in GCC 12; since LLVM 17.
const OLD_ALLOCATOR: u64 = 0x6000_0000_0000;
const NEW_ALLOCATOR: u64 = 0x5000_0000_0000;

/// In order: those with more marks first.
const LAYOUTS: &[Layout] = &[
    Layout {
        name: "AddressSanitizer",
        begins: &[0x7fff_7000],
        mapped: &[0x1000_7fff_7000],
        shadow: &[(0x7fff_7000, 0x1000_7fff_8000)],
        allocator: &[
            (OLD_ALLOCATOR, OLD_ALLOCATOR + TIB4 + TABLES),
            (NEW_ALLOCATOR, NEW_ALLOCATOR + TIB4 + TABLES),
        ],
    },
    Layout {
        name: "MemorySanitizer",
        begins: &[0x100_0000_0000, 0x5000_0000_0000, 0x6000_0000_0000],
        mapped: &[0x50ff_ffff_f000],
        shadow: &[(0x100_0000_0000, 0x5100_0000_0000)],
        allocator: &[(0x6000_0000_0000, 0x7400_0000_0000 + TABLES)],
    },
    // GCC 12, LLVM 14
    Layout {
        name: "ThreadSanitizer",
        begins: &[0x80_0000_0000, 0x100_0000_0000, 0x3000_0000_0000],
        mapped: &[0x33ff_ffff_f000],
        shadow: &[(0x80_0000_0000, 0x5500_0000_0000)],
        allocator: &[(0x5680_0000_0000, 0x7e80_0000_0000)],
    },
    // LLVM 19
    Layout {
        name: "ThreadSanitizer",
        begins: &[0x200_0000_0000, 0x1000_0000_0000],
        mapped: &[0x37ff_ffff_f000],
        shadow: &[(0x200_0000_0000, 0x5500_0000_0000)],
        allocator: &[(0x5a00_0000_0000, 0x7a00_0000_0000)],
    },
    Layout {
        name: "LeakSanitizer",
        begins: &[OLD_ALLOCATOR],
        mapped: &[OLD_ALLOCATOR + TIB4 - 0x1000],
        shadow: &[],
        allocator: &[(OLD_ALLOCATOR, OLD_ALLOCATOR + TIB4 + TABLES)],
    },
    Layout {
        name: "LeakSanitizer",
        begins: &[NEW_ALLOCATOR],
        mapped: &[NEW_ALLOCATOR + TIB4 - 0x1000],
        shadow: &[],
        allocator: &[(NEW_ALLOCATOR, NEW_ALLOCATOR + TIB4 + TABLES)],
    },
];

const PREFIXES: &[&str] = &["__asan", "__tsan", "__lsan", "__msan", "__hwasan", "__sanitizer", "__ubsan"];
const LIBRARIES: &[&str] =
    &["libasan", "libtsan", "liblsan", "libmsan", "libhwasan", "libubsan", "libclang_rt."];

pub struct SanitizerRule;

/// True for a function that stands in for one of the C library's: the caller requested the memory.
fn is_interceptor(line: &Line) -> bool {
    line.function.as_deref().is_some_and(|f| f.trim_start_matches('_').starts_with("interceptor_"))
}

fn is_own(line: &Line) -> bool {
    let names = [line.function.as_deref(), line.display.as_deref()];
    LIBRARIES.iter().any(|l| line.module.starts_with(l))
        || names.into_iter().flatten().any(|n| PREFIXES.iter().any(|p| n.starts_with(p)))
}

impl Rule for SanitizerRule {
    fn id(&self) -> &'static str {
        "sanitizer"
    }

    fn categories(&self) -> &'static [Category] {
        &[SANITIZER]
    }

    fn code(&self) -> Code {
        Code { role: Role::Runtime, modules: LIBRARIES, functions: PREFIXES, ..Code::NONE }
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        // ThreadSanitizer marks the shadow of read-only data by mapping a file there (tsan_platform_linux.cpp)
        let file = subject.name().rsplit(|&b| b == b'/').next().unwrap_or_default();
        file.starts_with(b"tsan.rodata.").then(|| claim(Evidence::Name, SHADOW))
    }

    fn knows(&self, line: &Line) -> bool {
        is_own(line) || is_interceptor(line)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path?;
        let interceptor = path.caller() + path.run(path.caller(), is_interceptor).len();
        // further in is other code, such as pthread_create behind its interceptor
        if !subject.is_private_anonymous()
            || at > interceptor
            || !path.lines.get(interceptor).is_some_and(is_own)
        {
            return None;
        }
        // its method, not a template that has it as an argument
        let large = |line: &Line| {
            let name = line.display.as_deref().unwrap_or_default();
            name.starts_with("__sanitizer::LargeMmapAllocator<") && name.ends_with("::Allocate")
        };
        if path.any(large) && placed(subject, world).is_none() {
            let user = interceptor + path.run(interceptor, |line| is_own(line) || is_interceptor(line)).len();
            return Some(Claim::new(SANITIZER, Evidence::Stack, LARGE).merge(Merge::ByCaller(user)));
        }
        let part = placed(subject, world).map_or(OTHER, |(part, _)| part);
        Some(claim(Evidence::Stack, part))
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if !subject.is_private_anonymous() {
            return None;
        }
        let (part, start) = placed(subject, world)?;
        Some(claim(Evidence::Header, part).instance(Instance::At(start)))
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        let name = runtime(group, world);
        if group.part(LARGE).virt > 0 && group.part(LARGE).virt == group.footprint.virt {
            let mut advice = Advice::why(format!(
                "{name}'s malloc maps large blocks one by one, and gives them back when they are freed"
            ));
            advice.title = Some(match group.instances {
                1 => format!("large block of {name}'s malloc"),
                n => format!("{n} large blocks of {name}'s malloc"),
            });
            return advice;
        }
        let mut advice = Advice::why(format!(
            "{name} reserves shadow memory for every address that the program could ever use, and room for \
             each size of block, at fixed places: harmless, it is by design and costs only what is touched"
        ))
        .wont("ulimit -v", "the program could not start: the reservations come first")
        .wont("the options of the sanitizer", "none of them makes the reservations smaller");
        advice.title = Some(format!("{name}'s shadow memory and allocator space"));
        advice.stack_is_noise = true;
        advice
    }
}

fn claim(evidence: Evidence, part: &'static str) -> Claim {
    Claim::new(SANITIZER, evidence, part).merge(Merge::ByCategory)
}

/// The layout that this process has, if any.
fn layout(world: &World<'_>) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| {
        let begins = layout.begins.iter().all(|&at| world.starts_at(Addr(at)));
        begins && layout.mapped.iter().all(|&at| world.mapping_at(Addr(at)).is_some())
    })
}

/// The part of a layout that holds the subject, and where it begins.
fn placed(subject: &Subject<'_>, world: &World<'_>) -> Option<(&'static str, Addr)> {
    // Checked for every piece, and true for none in nearly all programs.
    if !world.fact("has a sanitizer's layout", || layout(world).is_some()) {
        return None;
    }
    let layout = layout(world)?;
    let holder = |ranges: &[(u64, u64)]| {
        let held = ranges.iter().find(|(from, to)| AddrRange::new(*from, *to).contains(subject.range.start));
        held.map(|(from, _)| Addr(*from))
    };
    if let Some(start) = holder(layout.shadow) {
        return Some((if subject.is_reserved() { GAP } else { SHADOW }, start));
    }
    holder(layout.allocator).map(|start| (ALLOCATOR, start))
}

/// Its name, by its place or by its functions.
fn runtime(group: &Group<'_>, world: &World<'_>) -> &'static str {
    const NAMES: &[(&str, &str)] = &[
        ("asan", "AddressSanitizer"),
        ("tsan", "ThreadSanitizer"),
        ("msan", "MemorySanitizer"),
        ("lsan", "LeakSanitizer"),
        ("hwasan", "HWAddressSanitizer"),
    ];
    if let Some(layout) = layout(world) {
        return layout.name;
    }
    let by_path = |path: &CallPath| {
        let named = |short: &str| path.any(|l| l.module.contains(short) || l.mentions(&format!("__{short}")));
        NAMES.iter().find(|(short, _)| named(short)).map(|(_, long)| *long)
    };
    group.path.and_then(by_path).unwrap_or("a sanitizer")
}
