//! Which allocators and runtimes the mapped files hold ([`crate::objects::marks`] reads one file), and
//! which `malloc` the C library of the process calls.

use super::bss::bss_of;
use super::loader_data::read_loader_data;
use super::memory;
use super::process_dir::ProcessDir;
use crate::model::{Addr, CodeMarks, FileMarks, Mapping, MappingFile, NOT_ELF, Pid, Sign, Tid};
use crate::objects::marks::{FileFacts, MarkSearch};
use crate::objects::{
    LibcFacts, ObjectError, OpenRequest, Opener, Stamp, SystemOpener, is_elsewhere, marks_of, stamp_of_mapped,
};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Files and places remembered; begun anew at this number.
const MAX_KNOWN: usize = 1 << 14;

/// What was read so far. A snapshot repeats every time what the last one found, and the processes of a
/// service share their files: each is searched once.
#[derive(Default)]
struct MarkCache {
    opener: SystemOpener,
    /// By mapping: no file is opened for what was mapped there at the last snapshot.
    by_place: HashMap<(Pid, Addr, MappingFile), Arc<FileFacts>>,
    by_stamp: HashMap<Stamp, Arc<FileFacts>>,
    search: Option<MarkSearch>,
}

static KNOWN: LazyLock<Mutex<MarkCache>> = LazyLock::new(Mutex::default);

/// Reads every file that is mapped executable. Of one that cannot be opened only name and shape are known.
pub(super) fn read_marks(dir: &ProcessDir, tid: Tid, mappings: &[Mapping], signs: &[Sign]) -> CodeMarks {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let environment = dir.read("environ").unwrap_or_default();
    let mut out = CodeMarks { complete: true, ..CodeMarks::default() };
    out.variables = variables(&environment, signs);
    out.loader_data = read_loader_data(dir, tid, mappings);
    let (mut seen, mut elsewhere) = (HashMap::new(), None);
    for mapping in mappings.iter().filter(|mapping| mapping.prot.exec) {
        let Some(file) = mapping.file else { continue };
        let is_new = !seen.contains_key(&file);
        let found = seen
            .entry(file)
            .or_insert_with(|| known.found((dir.pid(), &mut elsewhere), (file, mapping), signs));
        let Some(found) = found else {
            out.complete = false;
            continue;
        };
        // A file may be mapped more than once: each has its bss.
        out.bss.extend(bss_of(mapping, &found.segments, mappings));
        if found.marks.is_empty() || !is_new {
            continue;
        }
        if let Some(libc) = &found.libc {
            out.libc_malloc = out.libc_malloc.or_else(|| called_malloc((dir, tid), (file, mappings), *libc));
        }
        out.files.push(FileMarks {
            file,
            marks: found.marks.clone(),
            setting: found.setting.clone(),
            version: found.libc.map(|libc| libc.version),
        });
    }
    out.bss.sort_unstable();
    out.bss.dedup();
    out
}

/// What a process was started with of the variables that rules use; none where that cannot be read.
pub fn read_variables(pid: Pid, tid: Tid, signs: &[Sign]) -> Vec<String> {
    let environment = ProcessDir::open(pid, tid).and_then(|dir| dir.read("environ"));
    variables(&environment.unwrap_or_default(), signs)
}

/// Of an environment, only what rules use: the rest may be secret.
fn variables(environment: &[u8], signs: &[Sign]) -> Vec<String> {
    let known =
        |name: &[u8]| signs.iter().flat_map(|sign| sign.variables).any(|end| name.ends_with(end.as_bytes()));
    let assignments = environment.split(|&byte| byte == 0);
    let found = assignments.filter(|word| {
        let end = word.iter().position(|&byte| byte == b'=').unwrap_or(0);
        known(word.get(..end).unwrap_or_default())
    });
    let mut found: Vec<String> = found.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    found.sort();
    found
}

impl MarkCache {
    /// `elsewhere`: whether the process has another mount namespace, once that was checked.
    fn found(
        &mut self,
        (pid, elsewhere): (Pid, &mut Option<bool>),
        (file, mapping): (MappingFile, &Mapping),
        signs: &[Sign],
    ) -> Option<Arc<FileFacts>> {
        let place = (pid, mapping.range.start, file);
        if let Some(found) = self.by_place.get(&place) {
            return Some(Arc::clone(found));
        }
        let elsewhere = *elsewhere.get_or_insert_with(|| is_elsewhere(pid));
        let stamp = if elsewhere { None } else { stamp_of_mapped(pid, mapping.range) };
        let found = match stamp.and_then(|stamp| self.by_stamp.get(&stamp)) {
            Some(found) => Arc::clone(found),
            None => self.read(pid, mapping, signs)?,
        };
        if self.by_place.len() + self.by_stamp.len() >= MAX_KNOWN {
            self.by_place.clear();
            self.by_stamp.clear();
        }
        self.by_place.insert(place, Arc::clone(&found));
        Some(found)
    }

    fn read(&mut self, pid: Pid, mapping: &Mapping, signs: &[Sign]) -> Option<Arc<FileFacts>> {
        let file_ref = mapping.file_ref()?;
        let request = OpenRequest { file: &file_ref, range: mapping.range, pid: Some(pid), build_id: None };
        let object = match self.opener.open(&request) {
            Ok(object) => object,
            Err(ObjectError::NoMagic) => {
                let marks = vec![NOT_ELF.to_owned()];
                return Some(Arc::new(FileFacts { marks, ..FileFacts::default() }));
            }
            Err(_) => return None,
        };
        let stamp = object.stamp();
        let before = stamp.and_then(|stamp| self.by_stamp.get(&stamp).cloned());
        let found = before.unwrap_or_else(|| {
            self.search.take_if(|search| !search.is_for(signs));
            let search = self.search.get_or_insert_with(|| MarkSearch::new(signs));
            Arc::new(marks_of(&object, search))
        });
        if let Some(stamp) = stamp {
            self.by_stamp.insert(stamp, Arc::clone(&found));
        }
        Some(found)
    }
}

/// Where calls of `malloc` inside the C library go: the loader wrote it into a slot of the library's
/// global offset table.
fn called_malloc(
    (dir, tid): (&ProcessDir, Tid),
    (file, mappings): (MappingFile, &[Mapping]),
    libc: LibcFacts,
) -> Option<Addr> {
    let (function, slot) = libc.malloc?;
    let own = |mapping: &&Mapping| mapping.file == Some(file);
    // A second copy (dlmopen) is mapped below the first.
    let bias = mappings.iter().filter(own).rfind(|mapping| mapping.offset == 0)?.range.start;
    let read = memory::read_pieces::<8>(dir, tid, &[bias.saturating_add(slot)]).ok()?;
    let called = Addr(u64::from_le_bytes((*read.first()?)?));
    let holder = mappings.iter().find(|mapping| mapping.range.contains(called) && mapping.prot.exec)?;
    // In the same file, but not its malloc: the way to the loader, nothing was called yet.
    let unbound = holder.file == Some(file) && called != bias.saturating_add(function);
    (!unbound).then_some(called)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_rules_are_taken_from_an_environment() {
        let sign = Sign { variables: &["MALLOC_CONF", "ARENAS"], ..Sign::new("x", &[]) };
        let text = b"PASSWORD=ARENAS\0_RJEM_MALLOC_CONF=a=b\0ARENAS=1\0=2\0ARENAS\0";
        assert_eq!(variables(text, &[sign]), ["ARENAS=1", "_RJEM_MALLOC_CONF=a=b"]);
        assert!(variables(text, &[]).is_empty());
    }
    use crate::attribution::rules::signs;
    use crate::procfs::parse_maps;
    use std::os::fd::AsRawFd;

    /// Mapped as code, as the heap images of runtimes are.
    #[test]
    fn a_file_that_is_no_elf_file_is_known_as_that() {
        let path = std::env::temp_dir().join(format!("vmaudit-no-elf-{}", std::process::id()));
        std::fs::write(&path, [b'L'; 4096]).expect("written");
        let file = std::fs::File::open(&path).expect("opened");
        let (prot, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
        // SAFETY: a new mapping of an open file, which is not written to.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let pid = std::process::id() as Pid;
        let dir = ProcessDir::open(pid, pid).expect("own directory");
        let mut mappings = parse_maps(&std::fs::read("/proc/self/maps").expect("maps")).mappings;
        mappings.retain(|mapping| mapping.range.start == Addr(at as u64));
        let code = read_marks(&dir, pid, &mappings, signs());
        std::fs::remove_file(&path).expect("removed");
        // SAFETY: mapped above, and nothing refers to it.
        unsafe { libc::munmap(at, 4096) };
        assert!(code.complete);
        let marks: Vec<&[String]> = code.files.iter().map(|found| found.marks.as_slice()).collect();
        assert_eq!(marks, [[NOT_ELF.to_owned()]]);
    }

    #[test]
    fn of_this_process() {
        let pid = std::process::id() as Pid;
        let dir = ProcessDir::open(pid, pid).expect("own directory");
        let mappings = parse_maps(&std::fs::read("/proc/self/maps").expect("maps")).mappings;
        let code = read_marks(&dir, pid, &mappings, signs());
        let glibc = code.files.iter().find(|found| found.version.is_some());
        let Some(glibc) = glibc else {
            crate::skip::skip_this("no glibc here");
            return;
        };
        let called = code.libc_malloc.expect("bound at start-up");
        let holder = mappings.iter().find(|mapping| mapping.range.contains(called)).expect("mapped");
        assert_eq!(holder.file, Some(glibc.file), "nothing else offers a malloc here");
        assert_eq!(read_marks(&dir, pid, &mappings, signs()), code, "remembered");
    }
}
