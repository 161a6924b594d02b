//! What the dynamic loader allocated before the program began: the descriptions of the files that it mapped
//! at the start, and what they point at. Debuggers find them the same way (link.h, `struct r_debug` and
//! `struct link_map`; both are part of the ABI): the auxiliary vector locates the program headers, these the
//! dynamic section, which holds the head of the list (DT_DEBUG).
//!
//! Other plain writable memory below a library does not belong to it.

use super::memory;
use super::process_dir::ProcessDir;
use crate::model::{Addr, AddrRange, Mapping, Tid};
use crate::sys::task::robust_list;

const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const AT_BASE: u64 = 7;
const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;
const PT_TLS: u32 = 7;
const DT_DEBUG: u64 = 21;
/// A program header.
type Header = [u8; 56];
/// Most headers, entries of a dynamic section and files that are examined.
const MAX_HEADERS: u64 = 64;
const MAX_ENTRIES: u64 = 256;
const MAX_FILES: usize = 4096;
/// Of a file's description, so much is searched for what it points at.
const DESCRIPTION: u64 = 1024;
/// What is read at once, and where that cannot be read to its end.
const BLOCK: usize = 1024;
const PIECE: usize = 64;

/// nptl/descr.h, `struct pthread`: how far its robust list's head is from its beginning (seen with glibc 2.36).
const HEAD: u64 = 0x2e0;
/// What glibc keeps free of the static TLS for libraries that come later (elf/dl-tls.c, `_dl_tls_static_surplus_init`
/// with the tunables as they are).
const SURPLUS: u64 = 1664;
/// The loader's own variables and its allocations are small: larger mappings hold other things.
const MAX_OWN: u64 = 64 << 10;

/// Addresses in plain writable memory that such descriptions and the loader's variables have, or point at, and the
/// first thread's block with the lowest address of its TLS; sorted. None where the list could not be read to its end
/// at the loader itself, or there is none (a static program).
pub(super) fn read_loader_data(dir: &ProcessDir, tid: Tid, mappings: &[Mapping]) -> Option<Vec<Addr>> {
    let read = Read { dir, tid };
    let lists = Lists::read(read)?;
    let holder = |at: Addr| Mapping::holding(mappings, at);
    let in_plain = |at: &Addr| holder(*at).is_some_and(Mapping::is_unnamed_memory);
    let thread: Vec<Addr> = lists.first_thread(read).into_iter().flatten().filter(in_plain).collect();
    let descriptions = lists.files.iter().map(|file| (*file, DESCRIPTION));
    let variables = holder(Addr(*lists.files.last()?)).filter(|own| own.range.len() <= MAX_OWN);
    let variables = variables.map(|own| (own.range.start.0, own.range.len()));
    let mut all: Vec<Addr> = lists.files.iter().copied().map(Addr).filter(in_plain).collect();
    let words = read.words(&descriptions.chain(variables).collect::<Vec<_>>())?;
    all.extend(words.into_iter().map(Addr).filter(in_plain));
    // What lies in the mappings found so far leads to the others; but for the thread's, which is the program's, too.
    let mut own: Vec<AddrRange> = all.iter().filter_map(|at| Some(holder(*at)?.range)).collect();
    own.sort_unstable();
    own.dedup();
    own.retain(|range| range.len() <= MAX_OWN && !thread.iter().any(|at| range.contains(*at)));
    let own: Vec<(u64, u64)> = own.iter().map(|range| (range.start.0, range.len())).collect();
    let further = read.words(&own)?;
    all.extend(further.into_iter().map(Addr).filter(in_plain));
    all.extend(thread);
    all.sort_unstable();
    all.dedup();
    Some(all)
}

/// What debuggers would find first.
struct Lists {
    /// Where the descriptions of the program, its libraries and the loader are, in this order.
    files: Vec<u64>,
    /// Where these files are mapped.
    images: Vec<u64>,
    /// The program's headers.
    headers: Vec<Header>,
}

impl Lists {
    fn read(read: Read<'_>) -> Option<Lists> {
        let auxv = read.dir.read("auxv").ok()?;
        let known = |kind: u64| {
            let mut pairs = auxv.as_chunks::<16>().0.iter().map(|pair| (word(pair, 0), word(pair, 8)));
            pairs.find(|(own, _)| *own == kind).map(|(_, value)| value)
        };
        let base = known(AT_BASE).filter(|base| *base != 0)?;
        let at = known(AT_PHDR)?;
        let headers = read.table(at, known(AT_PHNUM)?)?;
        let dynamic = dynamic_section(at, &headers)?;
        let entries: Vec<Addr> = (0..MAX_ENTRIES).map(|n| Addr(dynamic.saturating_add(n * 16))).collect();
        let entries = read.pieces::<16>(&entries)?.into_iter();
        let mut entries =
            entries.map_while(|entry| entry.map(|e| (word(&e, 0), word(&e, 8))).filter(|e| e.0 != 0));
        let (_, debug) = entries.find(|(tag, _)| *tag == DT_DEBUG)?;
        let mut next = word(&read.bytes::<16>(debug)?, 8);
        let (mut files, mut images) = (Vec::new(), Vec::new());
        loop {
            let description = read.bytes::<40>(next).filter(|_| files.len() < MAX_FILES)?;
            files.push(next);
            images.push(word(&description, 0));
            // what comes behind the loader itself was loaded by the running program (dlopen)
            if word(&description, 0) == base {
                return Some(Lists { files, images, headers });
            }
            next = word(&description, 24);
        }
    }

    /// An address in the first thread's block, and the lowest one of its TLS.
    fn first_thread(&self, read: Read<'_>) -> Option<[Addr; 2]> {
        let head = robust_list(read.dir.pid())?;
        let libraries = self.images.iter().skip(1).filter_map(|image| read.program_headers(*image)).flatten();
        let tls: u64 =
            libraries.chain(self.headers.iter().copied()).filter_map(|header| tls_size(&header)).sum();
        Some([Addr(head), Addr(head.saturating_sub(HEAD + SURPLUS).saturating_sub(tls))])
    }
}

/// Where the program's dynamic section is, by its headers as they lie in memory, from `at` on.
fn dynamic_section(at: u64, headers: &[Header]) -> Option<u64> {
    let place = |kind: u32| {
        let header = headers.iter().find(|header| header.starts_with(&kind.to_le_bytes()))?;
        Some(word(header, 16))
    };
    let bias = place(PT_PHDR).map_or(0, |own| at.wrapping_sub(own));
    Some(place(PT_DYNAMIC)?.wrapping_add(bias))
}

/// p_memsz of a thread-local segment, with its alignment.
fn tls_size(header: &Header) -> Option<u64> {
    header.starts_with(&PT_TLS.to_le_bytes()).then(|| word(header, 40).saturating_add(word(header, 48)))
}

/// A range in parts of this length; the last one may be shorter.
fn parts((start, len): (u64, u64), each: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len.div_ceil(each)).map(move |n| (start.saturating_add(n * each), each.min(len - n * each)))
}

fn words_of<const N: usize>(bytes: &[u8; N]) -> impl Iterator<Item = u64> {
    (0..N).step_by(8).map(|at| word(bytes, at))
}

/// The word at byte `at`, which lies inside.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

#[derive(Clone, Copy)]
struct Read<'a> {
    dir: &'a ProcessDir,
    tid: Tid,
}

impl Read<'_> {
    fn pieces<const N: usize>(self, at: &[Addr]) -> Option<Vec<Option<[u8; N]>>> {
        memory::read_pieces::<N>(self.dir, self.tid, at).ok()
    }

    /// Program headers.
    fn table(self, at: u64, count: u64) -> Option<Vec<Header>> {
        let places =
            (0..count.min(MAX_HEADERS)).map(|n| Addr(at.saturating_add(n * size_of::<Header>() as u64)));
        self.pieces(&places.collect::<Vec<_>>())?.into_iter().collect()
    }

    /// Those of an image, whose file begins at this address.
    fn program_headers(self, image: u64) -> Option<Vec<Header>> {
        let file = self.bytes::<64>(image).filter(|file| file.starts_with(b"\x7fELF"))?;
        self.table(image.saturating_add(word(&file, 32)), word(&file, 56) & 0xffff)
    }

    /// All words that can be read of these ranges (start, length).
    fn words(self, ranges: &[(u64, u64)]) -> Option<Vec<u64>> {
        let blocks: Vec<(u64, u64)> = ranges.iter().flat_map(|&range| parts(range, BLOCK as u64)).collect();
        let whole: Vec<Addr> = blocks.iter().map(|&(start, _)| Addr(start)).collect();
        let read = self.pieces::<BLOCK>(&whole)?;
        // What ends within a block, or cannot be read to its end.
        let rest = blocks.iter().zip(&read).filter(|&(&(_, len), read)| len < BLOCK as u64 || read.is_none());
        let rest = rest.flat_map(|(&block, _)| parts(block, PIECE as u64)).map(|(start, _)| Addr(start));
        let pieces = self.pieces::<PIECE>(&rest.collect::<Vec<_>>())?;
        let whole = blocks.iter().zip(&read).filter(|&(&(_, len), _)| len == BLOCK as u64);
        let whole = whole.filter_map(|(_, read)| read.as_ref()).flat_map(words_of);
        Some(whole.chain(pieces.iter().flatten().flat_map(words_of)).collect())
    }

    fn bytes<const N: usize>(self, at: u64) -> Option<[u8; N]> {
        self.pieces::<N>(&[Addr(at)])?.into_iter().next()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::parse_maps;

    #[test]
    fn what_the_loader_allocated_for_this_very_program() {
        let pid = std::process::id() as Tid;
        let dir = ProcessDir::open(pid, pid).expect("it lives");
        let maps = std::fs::read("/proc/self/maps").expect("maps");
        let found = read_loader_data(&dir, pid, &parse_maps(&maps).mappings).expect("a list");
        assert!(!found.is_empty() && found.is_sorted());
        // the heap is malloc's
        let boxed = Box::new(7u64);
        let heap = Addr(std::ptr::from_ref(&*boxed).addr() as u64);
        assert!(!found.contains(&heap));
        assert_eq!(
            read_loader_data(&dir, pid, &[]),
            Some(Vec::new()),
            "nothing is mapped, nothing is the loader's"
        );
    }
}
