//! `.gnu_debugdata`: symbols of static functions, as some distributions leave them in stripped files
//! ("MiniDebugInfo" in gdb's manual). The section is an ELF file, compressed with xz.

use crate::objects::{Object, ObjectError};
use lzma_rust2::XzReader;
use std::io::Read;

/// Largest file inside; those in the wild have some hundred kilobytes, and expand to five times that.
const MAX_SIZE: u64 = 64 << 20;
/// How far the section may expand, and how far it always may: a file of zeros alone expands to 7,000 times its size.
const MAX_RATIO: u64 = 64;
const ALWAYS: u64 = 1 << 20;
/// For the dictionary, KiB: `xz -9` needs 64 MiB, which are taken as they are filled.
const MAX_DICTIONARY_KIB: u32 = 96 << 10;

/// The file inside `object`; None where there is none.
///
/// # Errors
/// Damage, or a size beyond what is read.
pub(super) fn read(object: &Object) -> Result<Option<Object>, ObjectError> {
    let Some(section) = object.layout().section(b".gnu_debugdata") else { return Ok(None) };
    let compressed = object.section_bytes(section)?;
    let most = (compressed.len() as u64).saturating_mul(MAX_RATIO).clamp(ALWAYS, MAX_SIZE);
    let mut bytes = Vec::new();
    let reader = XzReader::new_mem_limit(&compressed[..], false, MAX_DICTIONARY_KIB);
    reader.take(most + 1).read_to_end(&mut bytes).map_err(|_| ObjectError::Compression)?;
    if bytes.len() as u64 > most {
        return Err(ObjectError::Expands { from: compressed.len() as u64, most });
    }
    Object::from_bytes(bytes).map(Some)
}
