//! The mappings of a process and their pages, read as close together as can be.

use super::error::ObserveError;
use super::maps::{MapsParser, ParsedMaps, parse_maps, user_span};
use super::observe::noted;
use super::process_dir::ProcessDir;
use super::residency::{PageReader, Scan};
use super::status::ProcessStatus;
use crate::model::observation::{Residency, ResidencySource};
use crate::model::{AddrRange, Mapping, PAGE};
use crate::sys::clock::monotonic_ns;
use crate::sys::file::read_at_most;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// What is read of maps at a time: some 800 mappings. Behind a file that is not longer the pages are scanned by the
/// same thread, else by a second one meanwhile.
const CHUNK: usize = 64 << 10;

/// Where user addresses end with four levels of page tables on x86-64 (TASK_SIZE_MAX). What lies above, mapped with
/// a hint, is scanned when maps has been read.
const LOW_END: u64 = (1 << 47) - PAGE;

/// The pages, where they were scanned, and the mappings.
type MapsAndPages = (Option<Scan>, ParsedMaps);

pub(super) struct AddressSpace {
    pub begun_ns: u64,
    pub ended_ns: u64,
    pub mappings: Vec<Mapping>,
    pub residency: Residency,
    pub guards: Vec<AddrRange>,
}

/// Files are opened before; the slower ways to find resident pages need the mappings first.
pub(super) fn read_address_space(
    dir: &ProcessDir,
    from: ResidencySource,
    status: Option<&ProcessStatus>,
    gaps: &mut Vec<String>,
) -> Result<AddressSpace, ObserveError> {
    let maps = dir.open_file("maps")?;
    let needs_pages = matches!(from, ResidencySource::PagemapScan | ResidencySource::Pagemap);
    let pagemap = if needs_pages { noted(gaps, dir.open_file("pagemap")) } else { None };
    let vm_swap = status.map(|status| status.figures.vm_swap);
    let mut pages = PageReader { dir, pagemap, vm_swap, gaps };

    let begun_ns = monotonic_ns();
    let (scan, parsed) = read_maps(dir, &maps, &mut pages, from == ResidencySource::PagemapScan)?;
    let scanned_ns = monotonic_ns();

    let mappings = checked(dir, parsed, pages.gaps)?;
    let (residency, guards, ended_ns) = match (scan, from) {
        (Some(mut scan), _) => {
            let guards = std::mem::take(&mut scan.guards);
            (pages.by_scan(&mappings, scan), guards, scanned_ns)
        }
        (None, ResidencySource::None) => (Residency::default(), Vec::new(), monotonic_ns()),
        (None, _) => {
            let residency = pages.by_pagemap(&mappings).unwrap_or_else(|| pages.by_smaps(&mappings));
            (residency, Vec::new(), monotonic_ns())
        }
    };
    whole(dir, &maps)?;
    Ok(AddressSpace { begun_ns, ended_ns, mappings, residency, guards })
}

fn read_maps(
    dir: &ProcessDir,
    maps: &File,
    pages: &mut PageReader<'_>,
    scans: bool,
) -> Result<MapsAndPages, ObserveError> {
    let mut text = read_at_most(maps, CHUNK).map_err(|source| dir.io_error("read", "maps", source))?;
    if text.len() == CHUNK {
        if let Some(start) = user_span(&text).map(|span| span.start.0).filter(|&at| scans && at < LOW_END) {
            match read_long(dir, maps, text, pages, AddrRange::new(start, LOW_END)) {
                Ok(read) => return read,
                Err(back) => text = back,
            }
        }
        text.extend(dir.read_open(maps, "maps", CHUNK)?);
    }
    let scan = if scans { user_span(&text).and_then(|span| pages.scan(span)) } else { None };
    Ok((scan, parse_maps(&text)))
}

/// A second thread scans `low` and then parses what has been read of maps, while the rest is read here: for the kernel
/// to write maps takes as long as both. `Err` gives `first` back: there may be no more threads.
fn read_long(
    dir: &ProcessDir,
    maps: &File,
    first: Vec<u8>,
    pages: &mut PageReader<'_>,
    low: AddrRange,
) -> Result<Result<MapsAndPages, ObserveError>, Vec<u8>> {
    let (chunks, received) = channel();
    let read = thread::scope(|scope| {
        let pages = &mut *pages;
        let work = move || {
            let scan = pages.scan(low);
            (scan, parse_chunks(&received))
        };
        let Ok(worker) = thread::Builder::new().spawn_scoped(scope, work) else { return Err(first) };
        let read = send_rest(maps, first, chunks).map_err(|source| dir.io_error("read", "maps", source));
        let worked = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok(read.map(|()| worked))
    })?;
    Ok(read.map(|(scan, parsed)| {
        let end = parsed.mappings.last().map_or(0, |mapping| mapping.range.end.0);
        let scan = match scan {
            Some(scan) if end > LOW_END => {
                pages.scan(AddrRange::new(LOW_END, end)).map(|high| scan.followed_by(high))
            }
            scan => scan,
        };
        (scan, parsed)
    }))
}

fn send_rest(maps: &File, first: Vec<u8>, chunks: Sender<Vec<u8>>) -> std::io::Result<()> {
    let mut chunk = first;
    while !chunk.is_empty() {
        let read = std::mem::replace(&mut chunk, read_at_most(maps, CHUNK)?);
        // who receives has panicked if this fails, and join reports it
        let _ = chunks.send(read);
    }
    Ok(())
}

fn parse_chunks(received: &Receiver<Vec<u8>>) -> ParsedMaps {
    let mut parser = MapsParser::default();
    received.iter().for_each(|chunk| parser.push(&chunk));
    parser.finish()
}

/// An address space that ends while maps is read ends the file, too (fs/proc/task_mmu.c, m_start:
/// mmget_not_zero). It never comes back: as long as it can be read now, it could all the time.
fn whole(dir: &ProcessDir, maps: &File) -> Result<(), ObserveError> {
    let again = maps.read_at(&mut [0], 0).map_err(|source| dir.io_error("read", "maps", source))?;
    if again == 0 {
        let (pid, operation, path) = (dir.pid(), "finish reading", dir.path("maps"));
        return Err(ObserveError::Gone { pid, operation, path });
    }
    Ok(())
}

/// What could not be used of maps is noted in `gaps`.
fn checked(
    dir: &ProcessDir,
    parsed: ParsedMaps,
    gaps: &mut Vec<String>,
) -> Result<Vec<Mapping>, ObserveError> {
    let ParsedMaps { mappings, damaged, torn } = parsed;
    if mappings.is_empty() && damaged.is_empty() {
        return Err(ObserveError::NoAddressSpace { pid: dir.pid(), path: dir.path("maps") });
    }
    if let Some(first) = damaged.first() {
        let path = dir.path("maps");
        gaps.push(format!("{}: {} damaged lines skipped, first {first}", path.display(), damaged.len()));
    }
    if torn > 0 {
        gaps.push(format!("maps changed while it was read: {torn} overlapping lines were cut"));
    }
    Ok(mappings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pid;
    use std::process::{Command, Stdio};

    #[test]
    fn what_was_read_of_a_process_that_ends_meanwhile_is_not_taken_for_whole() {
        let mut sleeper = Command::new("sleep");
        let mut child = sleeper.arg("1000").stdin(Stdio::null()).spawn().expect("sleep starts");
        let pid = child.id() as Pid;
        let dir = ProcessDir::open(pid, pid).expect("it lives");
        let maps = dir.open_file("maps").expect("maps");
        dir.read_open(&maps, "maps", 4096).expect("maps");
        let living = whole(&dir, &maps).is_ok();
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert!(living);
        assert!(matches!(whole(&dir, &maps), Err(ObserveError::Gone { .. })));
    }

    /// Shared memory of one page each, so that no two merge; every third one is touched.
    #[test]
    fn a_long_maps_is_read_as_a_short_one() {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let page = std::num::NonZeroUsize::new(PAGE as usize).expect("not 0");
        let kept: Vec<_> = (0..3000)
            .map(|_| {
                // SAFETY: new memory, which nobody else uses.
                unsafe { mmap_anonymous(None, page, ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED) }
                    .expect("a page")
            })
            .collect();
        for at in kept.iter().step_by(3) {
            // SAFETY: a page of its own, writable.
            unsafe { at.cast::<u8>().write(1) };
        }
        let pid = std::process::id() as Pid;
        let dir = ProcessDir::open(pid, pid).expect("this process");
        let mut gaps = Vec::new();
        let scanned = read_address_space(&dir, ResidencySource::PagemapScan, None, &mut gaps).expect("read");
        for (number, at) in kept.iter().enumerate() {
            let at = at.as_ptr().addr() as u64;
            let own = AddrRange::new(at, at + PAGE);
            assert!(scanned.mappings.iter().any(|mapping| mapping.range == own), "{own:?}");
            let resident = scanned.residency.resident.iter().any(|range| range.intersect(own) == own);
            assert_eq!(resident, number % 3 == 0, "{own:?}");
        }
        for at in kept {
            // SAFETY: made above, used no more.
            unsafe { munmap(at, PAGE as usize) }.expect("unmapped");
        }
    }
}
