//! Colours of flame graphs: what the memory is in strong ones, one a category (as in the HTML report);
//! functions, which lead to it, in pale ones by module, and everything else in greys.

use crate::render::folded::report::Kind;
use crate::report::frames::{Role, role_of_module};

/// Red, green, blue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rgb(pub u8, pub u8, pub u8);

impl std::fmt::Display for Rgb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rgb({},{},{})", self.0, self.1, self.2)
    }
}

const CATEGORIES: [(&str, Rgb); 25] = [
    ("glibc-arena", Rgb(0x1c, 0x6f, 0xb8)),
    ("glibc-main-heap", Rgb(0x3f, 0x98, 0xdc)),
    ("glibc-mmapped", Rgb(0x5a, 0x67, 0xd0)),
    ("thread-stack", Rgb(0xa8, 0x78, 0xdd)),
    ("main-stack", Rgb(0x8a, 0x55, 0xc4)),
    ("jemalloc", Rgb(0xde, 0x7a, 0x16)),
    ("tcmalloc", Rgb(0xc8, 0x5f, 0x1a)),
    ("mimalloc", Rgb(0xb5, 0x84, 0x0f)),
    ("musl-malloc", Rgb(0xa8, 0x74, 0x2c)),
    ("jvm-heap", Rgb(0x12, 0x97, 0x8a)),
    ("jvm-metaspace", Rgb(0x3b, 0x8f, 0x45)),
    ("jvm-code-cache", Rgb(0x7d, 0x9a, 0x1e)),
    ("jvm-other", Rgb(0x5c, 0x94, 0x84)),
    ("go-heap", Rgb(0x15, 0x97, 0xb5)),
    ("v8", Rgb(0x5f, 0x9a, 0x34)),
    ("python-arena", Rgb(0xb0, 0x8a, 0x0c)),
    ("sanitizer-shadow", Rgb(0xa3, 0x54, 0x7c)),
    ("loader", Rgb(0x74, 0x82, 0x96)),
    ("file", Rgb(0xa0, 0x8a, 0x70)),
    ("shared-anon", Rgb(0xd4, 0x60, 0x8f)),
    ("sysv-shm", Rgb(0xb8, 0x4a, 0x82)),
    ("hugetlb", Rgb(0xbf, 0x4a, 0x66)),
    ("kernel", Rgb(0x5b, 0x68, 0x78)),
    ("app-mmap", Rgb(0xbb, 0x8a, 0x12)),
    ("unknown", Rgb(0xd2, 0x40, 0x2f)),
];

/// For categories that have no colour of their own.
const MORE: [Rgb; 6] = [
    Rgb(0x2f, 0x8f, 0xa8),
    Rgb(0x9b, 0x7a, 0x2f),
    Rgb(0x8c, 0x6b, 0xb5),
    Rgb(0xb3, 0x60, 0x4a),
    Rgb(0x4f, 0x8f, 0x5f),
    Rgb(0xa8, 0x58, 0x8f),
];

/// Of modules other than the program and the C library.
const MODULES: [Rgb; 6] = [
    Rgb(0xe3, 0xec, 0xd9),
    Rgb(0xda, 0xea, 0xe8),
    Rgb(0xee, 0xe3, 0xf1),
    Rgb(0xf3, 0xe1, 0xdd),
    Rgb(0xe6, 0xe4, 0xf3),
    Rgb(0xec, 0xe8, 0xd2),
];
pub(super) const PROGRAM: Rgb = Rgb(0xfb, 0xe3, 0xb3);
pub(super) const C_LIBRARY: Rgb = Rgb(0xe4, 0xe8, 0xee);
const ROOT: Rgb = Rgb(0xcf, 0xd6, 0xdf);
const NOTE: Rgb = Rgb(0xf1, 0xf1, 0xf1);
/// Equally large before and after.
const EQUAL: Rgb = Rgb(0xf2, 0xf2, 0xf2);

/// A category's colour, light enough for black text on it.
pub(super) fn category(id: &str) -> Rgb {
    let own = CATEGORIES.iter().find(|(name, _)| *name == id).map(|(_, color)| *color);
    let more = || MORE.get(hash(id) % MORE.len()).copied().unwrap_or(NOTE);
    mixed(own.unwrap_or_else(more), Rgb(255, 255, 255), 0.42)
}

/// Of a frame; `within` is the category that it is a part of, `program` the module of the process itself.
pub(super) fn of(kind: &Kind, within: Option<&str>, program: &str) -> Rgb {
    match kind {
        Kind::Process => ROOT,
        Kind::Thread => mixed(ROOT, Rgb(255, 255, 255), 0.4),
        Kind::Note => NOTE,
        Kind::Function(module) if module == program => PROGRAM,
        Kind::Function(module) if matches!(role_of_module(module), Role::Libc | Role::Loader) => C_LIBRARY,
        Kind::Function(module) => MODULES.get(hash(module) % MODULES.len()).copied().unwrap_or(NOTE),
        Kind::Category(id) => category(id),
        Kind::Part => mixed(within.map_or(NOTE, category), Rgb(255, 255, 255), 0.35),
    }
}

/// Red for what grew, blue for what shrank, the stronger the larger a part of `most` it is.
pub(super) fn change(change: i128, most: u128) -> Rgb {
    if change == 0 || most == 0 {
        return EQUAL;
    }
    // The root of it, so that what is small beside the largest change has a colour still.
    let part = (change.unsigned_abs() as f64 / most as f64).clamp(0.0, 1.0).sqrt();
    let strong = if change > 0 { Rgb(0xe8, 0x52, 0x45) } else { Rgb(0x4a, 0x86, 0xe0) };
    mixed(EQUAL, strong, 0.15 + 0.85 * part)
}

/// `part` of `b` in `a`.
fn mixed(a: Rgb, b: Rgb, part: f64) -> Rgb {
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part).round() as u8;
    Rgb(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// FNV-1a: the same in each run, and for each version of the compiler.
fn hash(text: &str) -> usize {
    text.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance and contrast (WCAG 2).
    fn contrast_with_black(color: Rgb) -> f64 {
        let linear = |c: u8| (f64::from(c) / 255.0).powf(2.2);
        (0.2126 * linear(color.0) + 0.7152 * linear(color.1) + 0.0722 * linear(color.2) + 0.05) / 0.05
    }

    #[test]
    fn black_text_can_be_read_on_every_category() {
        for (id, _) in CATEGORIES {
            assert!(contrast_with_black(category(id)) > 5.5, "{id}: {}", category(id));
        }
        assert_eq!(category("new-one"), category("new-one"));
    }

    #[test]
    fn changes_are_red_and_blue() {
        let (grown, shrunk) = (change(10, 10), change(-10, 10));
        assert!(grown.0 > grown.2 && shrunk.2 > shrunk.0);
        assert_eq!(change(0, 10), EQUAL);
        assert!(contrast_with_black(grown) > 4.5 && contrast_with_black(shrunk) > 4.5);
    }
}
