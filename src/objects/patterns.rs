//! Finds code by what it reads.

use super::Object;
use super::starts::in_pieces;
use memchr::memmem;

/// Places that are returned at most.
const MOST: usize = 64;

/// The virtual addresses in executable segments at which a file reads `code`, in their order.
pub fn code_like(object: &Object, code: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    let finder = memmem::Finder::new(code);
    for segment in object.layout().segments.iter().filter(|segment| segment.exec) {
        in_pieces(object, (segment, segment.file_size), code.len() as u64, |bytes, address| {
            let places = finder.find_iter(bytes).map(|place| address.wrapping_add(place as u64));
            found.extend(places.take(MOST - found.len()));
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::starts::CHUNK;

    #[test]
    fn code_is_found_where_the_file_has_it() {
        let file = std::fs::File::open("/proc/self/exe").expect("the test itself");
        let object = Object::from_file(file).expect("an ELF file");
        let segment = object.layout().segments.iter().find(|segment| segment.exec).copied().expect("code");
        // Across the border between two pieces, if there are two.
        let offset = (segment.file_size.min(CHUNK)).saturating_sub(24);
        let code = object.read(segment.offset + offset, 48).expect("code");
        assert!(code_like(&object, &code).contains(&(segment.vaddr + offset)));
        assert_eq!(code_like(&object, &[0xf1; 48]), Vec::<u64>::new());
    }
}
