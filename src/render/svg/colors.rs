//! Colours of flame graphs: what the memory is in strong ones, one a category (as in the HTML report);
//! functions, which lead to it, in pale ones by module, and everything else in greys.

use crate::render::folded::report::Kind;
use crate::report::category_color;
use crate::report::frames::{Role, role_of_module};

/// Red, green, blue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rgb(pub u8, pub u8, pub u8);

impl std::fmt::Display for Rgb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rgb({},{},{})", self.0, self.1, self.2)
    }
}

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
    let [_, r, g, b] = category_color(id).to_be_bytes();
    mixed(Rgb(r, g, b), Rgb(255, 255, 255), 0.42)
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
pub(super) fn change(change: i64, most: u64) -> Rgb {
    if change == 0 || most == 0 {
        return EQUAL;
    }
    // The root of it, so that what is small compared with the largest change still has a colour.
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
        let all = crate::attribution::rules::RULES.iter().flat_map(|rule| rule.categories());
        for id in all.map(|category| category.id).chain(["unknown"]) {
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
