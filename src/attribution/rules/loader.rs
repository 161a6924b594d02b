//! ELF images: what execve and ld.so map of the program and its libraries, their bss, the
//! holes between their segments, ld.so's own small allocations and the first thread's TLS.

use super::musl::{is_musl, uses_musl};
use super::runs::{extent, run_length};
use super::{Advice, Claim, Group, Rule, Subject, Surveyed, World};
use crate::attribution::call::MAP_FIXED;
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::attribution::code::{Code, Role};
use crate::attribution::findings::Fix;
use crate::attribution::footprint::overlapping;
use crate::attribution::units::size;
use crate::ledger::{Origin, Region, RegionKind};
use crate::model::{Addr, Mapping, Prot, Sharing};

pub const LOADER: Category = Category(&CategoryInfo {
    id: "loader",
    color: 0x8695ac,
    name: "program and libraries",
    one: "program and libraries (ELF images)",
    many: "ELF images and what belongs to them",
});

const IMAGE: &str = "image";
const HOLE: &str = "hole between segments";
/// One that is no wider than pages of 4 KiB need.
const GAP: &str = "page between segments";
const BSS: &str = "bss";
const TLS: &str = "TLS and loader data";

const FUNCTIONS: &[&str] = &[
    "_dl_map_segments",
    "_dl_map_segment",
    "_dl_map_object_from_fd",
    "_dl_map_object",
    "dl_open_worker",
    "dl_open_worker_begin",
    "_dl_open",
    "__minimal_malloc",
    "_dl_sysdep_read_whole_file",
    "_dl_start",
    "_dl_sysdep_start",
    "dl_main",
    "init_tls",
    "__libc_setup_tls",
    "_dl_early_allocate",
    "map_library",
    "__dls2",
    "__dls2b",
    "__dls3",
];
const DLOPEN: &[&str] =
    &["dlopen", "__dlopen", "dlmopen", "__dlmopen", "dlopen_implementation", "__libc_dlopen_mode"];

/// Below the first library lies what ld.so allocated; more than this is not its own.
const MAX_TLS: u64 = 512 << 10;

/// As far as what lies below it in the same VMA is concerned.
const MAX_VMA: u64 = 4 << 20;

/// What binutils before 2.31 linked for, and what `-z max-page-size=2097152` does.
const WIDE: u64 = 2 << 20;

const ID: &str = "loader";

pub struct LoaderRule;

const LD_SO: &[&str] = &["ld-linux", "ld-2.", "ld-musl", "ld64.so", "ld.so.1"];

fn is_ld_so(module: &str) -> bool {
    LD_SO.iter().any(|name| module.starts_with(name))
}

impl Rule for LoaderRule {
    fn id(&self) -> &'static str {
        ID
    }

    fn categories(&self) -> &'static [Category] {
        &[LOADER]
    }

    fn code(&self) -> Code {
        Code { role: Role::Loader, modules: LD_SO, ..Code::NONE }
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        // elf/dl-minimal-malloc.c, with glibc.mem.decorate_maps=1
        (subject.anon_name()?.trim_ascii_start() == b"glibc: loader malloc")
            .then(|| Claim::new(LOADER, Evidence::Name, TLS).merge(Merge::ByCategory))
    }

    fn survey(&self, world: &World<'_>) -> Vec<Surveyed> {
        bss_by_place(world)
    }

    fn knows(&self, line: &Line) -> bool {
        is_ld_so(&line.module) || line.is(FUNCTIONS)
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path?;
        // called by its own wrapper of mmap: other frames further in are not its own: ld.so only called them
        // (constructors)
        let module = path.lines.get(at)?.module.as_str();
        if !path.is_direct(at, |line| line.module == module) {
            return None;
        }
        // musl's loader is its C library, too
        let in_libc = is_musl(module) && !path.any(|line| line.is(FUNCTIONS));
        let anonymous = subject.region.kind != RegionKind::File;
        if in_libc && anonymous && !subject.call.is_some_and(|call| call.has(MAP_FIXED)) {
            return None;
        }
        let claim = match subject.region.kind {
            RegionKind::File if subject.region.sharing == Sharing::Private => {
                image(subject, world, Evidence::Stack)
            }
            RegionKind::Anonymous if subject.region.sharing == Sharing::Private => {
                let fixed = subject.call.is_some_and(|c| c.has(MAP_FIXED));
                Claim::new(LOADER, Evidence::Stack, if fixed { BSS } else { TLS })
            }
            // a static program's TLS (elf/dl-early_allocate.c)
            RegionKind::Brk => Claim::new(LOADER, Evidence::Stack, TLS),
            _ => return None,
        };
        // at start-up all stacks are alike; with dlopen they show which code loaded the library
        let dlopen = path.lines.iter().rposition(|l| l.is(DLOPEN));
        Some(claim.merge(dlopen.map_or(Merge::ByCategory, Merge::ByCaller)))
    }

    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let own = matches!(subject.region.kind, RegionKind::Anonymous | RegionKind::Brk)
            && subject.region.sharing == Sharing::Private
            && is_untraced(subject.region);
        let bss = || overlapping(&world.input.observations.code.bss, subject.range);
        (own && bss().iter().any(|bss| bss.contains_range(subject.range)))
            .then(|| Claim::new(LOADER, Evidence::Header, BSS).merge(Merge::ByCategory))
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        if !is_untraced(region) {
            return Vec::new();
        }
        let bss = overlapping(&world.input.observations.code.bss, region.range);
        let own = if is_data(region) { first_page_of_loader(region, world) } else { None };
        bss.iter().flat_map(|bss| [bss.start, bss.end]).chain(own).collect()
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let mapping = subject.mapping?;
        if subject.is_file() {
            let image_file = subject.region.origin == Origin::Kernel
                || (world.is_image(mapping) && subject.region.sharing == Sharing::Private);
            let evidence =
                if subject.region.origin == Origin::Kernel { Evidence::Kernel } else { Evidence::Name };
            return image_file.then(|| image(subject, world, evidence));
        }
        if !subject.is_private_anonymous() || subject.record.is_some() || subject.name() == b"[heap]" {
            return None;
        }
        if subject.region.origin == Origin::Kernel {
            // execve maps the program's own bss (fs/binfmt_elf.c)
            return Some(Claim::new(LOADER, Evidence::Kernel, BSS).merge(Merge::ByCategory));
        }
        if subject.region.prot != Prot::RW {
            return None;
        }
        if world.surveyed(ID, subject.range.start).is_some() {
            return Some(Claim::new(LOADER, Evidence::Shape, BSS).merge(Merge::ByCategory));
        }
        if let Some(claim) = by_its_lists(subject, world) {
            return claim;
        }
        let own_image = |m: &Mapping| world.is_image(m);
        let above = world.above(subject.region.vma)?;
        let first_page = own_image(above) && above.offset == 0 || above.name.starts_with(b"[vvar");
        let loader = || world.fact("has a dynamic loader", || world.has_file(is_ld_so));
        (first_page && subject.range.len() <= MAX_TLS && loader())
            .then(|| Claim::new(LOADER, Evidence::Shape, TLS).merge(Merge::ByCategory))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let holes = group.part(HOLE);
        let mut why = "the program and its libraries are mapped as whole files; only pages that run or are \
                       read get into memory, and those that nobody wrote to are shared with all processes that map \
                       the file"
            .to_string();
        let bss = group.part(BSS).virt;
        if bss > 0 {
            let bss = size(bss);
            why +=
                &format!("; {bss} are bss: variables that begin as zeros, in no file and shared with nobody");
        }
        let mut advice = if holes.virt > 0 {
            why += "; part of it are holes between segments that were linked for 2 MiB pages: address space \
                    and nothing else";
            Advice::why(why).fix(Fix::new("link with -Wl,-z,max-page-size=4096", holes.virt, 0))
        } else {
            Advice::why(why)
        };
        // bss, and what the loader allocated, are things of their own, but no files
        let images = group.instances_with(IMAGE);
        if group.path.is_some_and(|p| p.any(|l| l.is(DLOPEN))) {
            advice.title = Some(match images {
                0 | 1 => "library loaded by dlopen".to_string(),
                n => format!("{n} libraries and their data, loaded by dlopen"),
            });
        } else {
            advice.title = Some(match images {
                0 | 1 => LOADER.one.to_string(),
                n => format!("{n} {}", LOADER.many),
            });
            advice.stack_is_noise = true;
        }
        advice
    }
}

/// Whether something lies in it that the dynamic loader is known to have allocated: the descriptions of the files that
/// it mapped at the start, or the first thread's block with its TLS. None where that is not known.
fn by_its_lists(subject: &Subject<'_>, world: &World<'_>) -> Option<Option<Claim>> {
    let own = loader_data(world)?;
    let next = own.get(own.partition_point(|at| *at < subject.range.start));
    let inside = next.is_some_and(|at| subject.range.contains(*at));
    let claim = || Claim::new(LOADER, Evidence::Header, TLS).merge(Merge::ByCategory);
    Some((inside && subject.range.len() <= MAX_TLS).then(claim))
}

fn loader_data<'a>(world: &World<'a>) -> Option<&'a Vec<Addr>> {
    world.input.observations.code.loader_data.as_ref().filter(|_| !uses_musl(world))
}

/// What is mapped later lies lower, and may be one VMA with what the loader allocated.
fn first_page_of_loader(region: &Region, world: &World<'_>) -> Option<Addr> {
    let range = region.range;
    // its variables hold the list of threads' stacks, too, and the newest thread may not have run yet
    if range.len() > MAX_VMA || world.threads.has_block_in(range) {
        return None;
    }
    let own = loader_data(world)?;
    let lowest = own.get(own.partition_point(|at| *at < region.range.start))?;
    region.range.contains(*lowest).then(|| lowest.page_down())
}

/// The program's bss where no file could be read (a saved smaps): all plain writable memory from the end of its data
/// on, in pieces since it was advised about a part of it. The program is what the kernel put brk above, and nothing
/// else is ever mapped in between. Of a library's bss only the file knows where it ends.
fn bss_by_place(world: &World<'_>) -> Vec<Surveyed> {
    let code = &world.input.observations.code;
    let mappings = world.mappings();
    let heap = mappings.iter().position(|m| m.is_special("[heap]"));
    let Some(below) = heap.and_then(|heap| mappings.get(..heap)) else { return Vec::new() };
    let Some(data) = below.iter().rposition(|m| m.file.is_some()) else { return Vec::new() };
    if code.complete || !code.bss.is_empty() || !below[data].prot.write || !world.is_image(&below[data]) {
        return Vec::new();
    }
    let above = below.get(data + 1..).unwrap_or(&[]);
    let above = above.split_at(run_length(above, is_plain)).0;
    if above.first().is_none_or(|first| first.range.start != below[data].range.end) {
        return Vec::new();
    }
    let claim = Claim::new(LOADER, Evidence::Shape, BSS).merge(Merge::ByCategory);
    vec![Surveyed { range: extent(above), claim }]
}

fn is_data(region: &Region) -> bool {
    region.kind == RegionKind::Anonymous && region.sharing == Sharing::Private && region.prot == Prot::RW
}

/// Neither a call nor the kernel's execve shows what it is.
fn is_untraced(region: &Region) -> bool {
    matches!(region.origin, Origin::Preexisting | Origin::Unknown)
}

fn is_plain(m: &Mapping) -> bool {
    m.file.is_none() && m.name.is_empty() && m.prot == Prot::RW
}

fn image(subject: &Subject<'_>, world: &World<'_>, evidence: Evidence) -> Claim {
    let part = match subject.is_reserved() {
        true if is_wide(subject, world) => HOLE,
        true => GAP,
        false => IMAGE,
    };
    let claim = Claim::new(LOADER, evidence, part).merge(Merge::ByCategory);
    match subject.name() {
        b"" => claim,
        name => claim.instance(Instance::Named(name.to_vec())),
    }
}

/// By how much the addresses of a file's segments run ahead of their places in the file is a multiple of the alignment
/// that it was linked for (p_align: p_vaddr and p_offset are congruent modulo it). Where that is none of [`WIDE`], linking
/// for 4 KiB would change nothing.
fn is_wide(subject: &Subject<'_>, world: &World<'_>) -> bool {
    let vma = subject.region.vma;
    let (Some(below), Some(above)) = (world.below(vma), world.above(vma)) else { return false };
    let ahead = |m: &Mapping| m.range.start.0.wrapping_sub(m.offset);
    let same_file = above.file.is_some() && above.file == below.file;
    same_file && ahead(above).wrapping_sub(ahead(below)).is_multiple_of(WIDE)
}
