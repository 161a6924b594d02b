//! `.gnu_debugdata`: symbols of static functions, as some distributions leave them in stripped files
//! ("MiniDebugInfo" in gdb's manual). The section is an ELF file, compressed with xz.

use crate::objects::{Object, ObjectError};
use lzma_rust2::XzReader;
use std::io::Read;

/// Largest file inside; those in the wild have some hundred kilobytes.
const MAX_SIZE: u64 = 256 << 20;
/// For the dictionary, KiB: `xz -9` needs 64 MiB.
const MAX_DICTIONARY_KIB: u32 = 96 << 10;

/// The file inside `object`; None where there is none.
///
/// # Errors
/// Damage, or a size beyond what is read.
pub(super) fn read(object: &Object) -> Result<Option<Object>, ObjectError> {
    let Some(section) = object.layout().section(b".gnu_debugdata") else { return Ok(None) };
    let compressed = object.section_bytes(section)?;
    let mut bytes = Vec::new();
    let reader = XzReader::new_mem_limit(&compressed[..], false, MAX_DICTIONARY_KIB);
    reader.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(|_| ObjectError::Compression)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(ObjectError::TooLarge(bytes.len() as u64));
    }
    Object::from_bytes(bytes).map(Some)
}
