//! Finding the file that holds a stripped file's symbols: by build id, then by `.gnu_debuglink`,
//! in the order of gdb ("Debugging Information in Separate Files").

use super::bytes::ObjectError;
use super::object::Object;
use super::open::open_regular;
use flate2::Crc;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where debug files are installed.
pub const DEBUG_DIRS: [&str; 1] = ["/usr/lib/debug"];

/// Largest file whose checksum is computed: CRC-32 of more would stall the report.
const MAX_CHECKED: u64 = 1 << 30;

/// The separate debug file of `object`, which was mapped from `path`; proven to belong to it.
///
/// A build id can be copied, and `path` is as the target calls it: only root and the owner of the file itself
/// are believed, or any user could choose where in a library functions seem to begin, and so where probes are
/// placed for all of its users.
pub fn find(object: &Object, path: &[u8], dirs: &[PathBuf]) -> Option<Object> {
    by_build_id(object, dirs).or_else(|| by_link(object, path, dirs))
}

fn is_believed(debug: &Object, of: &Object) -> bool {
    debug.owner().is_some_and(|owner| owner == 0 || of.owner() == Some(owner))
}

fn by_build_id(object: &Object, dirs: &[PathBuf]) -> Option<Object> {
    let id = object.build_id()?;
    // Hex digits by construction: nothing in it can leave the directory.
    let (head, tail) = id.split_at_checked(2)?;
    let candidates = dirs.iter().map(|dir| dir.join(format!(".build-id/{head}/{tail}.debug")));
    candidates
        .filter_map(|path| open(&path).ok())
        .find(|found| found.build_id() == Some(id) && is_believed(found, object))
}

fn by_link(object: &Object, path: &[u8], dirs: &[PathBuf]) -> Option<Object> {
    let section = object.layout().section(b".gnu_debuglink")?;
    let (name, crc) = parse_link(&object.section_bytes(section).ok()?)?;
    let name = Path::new(OsStr::from_bytes(&name)).to_path_buf();
    let dir = Path::new(OsStr::from_bytes(path)).parent()?;
    let next_to_file = [dir.join(&name), dir.join(".debug").join(&name)];
    let mut candidates = next_to_file.to_vec();
    if let Ok(relative) = dir.strip_prefix("/") {
        candidates.extend(dirs.iter().map(|d| d.join(relative).join(&name)));
    }
    candidates.into_iter().filter_map(|path| open(&path).ok().map(|o| (path, o))).find_map(|(path, found)| {
        let proven = match (object.build_id(), found.build_id()) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => checksum(&path) == Some(crc),
        };
        (proven && is_believed(&found, object)).then_some(found)
    })
}

fn open(path: &Path) -> Result<Object, ObjectError> {
    Object::from_file(open_regular(path)?)
}

/// A file name, zero padding to 4 bytes, CRC-32. Names with a slash are refused: the file does
/// not get to choose the directory.
fn parse_link(section: &[u8]) -> Option<(Vec<u8>, u32)> {
    let end = section.iter().position(|&b| b == 0)?;
    let name = section.get(..end)?;
    let crc = section.get((end + 1).next_multiple_of(4)..)?.get(..4)?;
    let plain = !name.is_empty() && !name.contains(&b'/') && name != b".." && name != b".";
    plain.then(|| Some((name.to_vec(), u32::from_le_bytes(crc.try_into().ok()?))))?
}

fn checksum(path: &Path) -> Option<u32> {
    let mut file = open_regular(path).ok()?;
    if file.metadata().ok()?.len() > MAX_CHECKED {
        return None;
    }
    let mut crc = Crc::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match std::io::Read::read(&mut file, &mut buffer) {
            Ok(0) => return Some(crc.sum()),
            Ok(n) => crc.update(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links() {
        assert_eq!(parse_link(b"a.debug\0\x01\x02\x03\x04"), Some((b"a.debug".to_vec(), 0x0403_0201)));
        assert_eq!(parse_link(b"ab\0\0\x01\0\0\0"), Some((b"ab".to_vec(), 1)));
        for bad in
            [&b"../x\0\0\0\0\x01\0\0\0"[..], b"..\0\0\x01\0\0\0", b"abc", b"abc\0\x01", b"\0\0\0\0\0\0\0\0"]
        {
            assert_eq!(parse_link(bad), None, "{bad:?}");
        }
    }
}
