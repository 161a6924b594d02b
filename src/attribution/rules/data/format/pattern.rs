//! Names with `*` for any characters.

use std::fmt;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pattern(String);

impl Pattern {
    /// Characters that a pattern has to have besides `*`: one that matches everything proves nothing.
    pub const LEAST: usize = 3;

    pub fn new(text: &str) -> Option<Pattern> {
        let plain = |c: char| !c.is_control() && c != '*';
        (text.chars().filter(|&c| plain(c)).count() >= Pattern::LEAST && !text.contains(char::is_control))
            .then(|| Pattern(text.to_owned()))
    }

    /// The text, where it is no pattern.
    pub fn exact(&self) -> Option<&str> {
        (!self.0.contains('*')).then_some(&self.0)
    }

    pub fn matches(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A demangled name without its parameters: `buf_pool_t::create()` → `buf_pool_t::create`.
pub fn bare_name(display: &str) -> &str {
    const UNNAMED: &str = "(anonymous namespace)";
    let open = |&(at, _): &(usize, &str)| at > 0 && !display[at..].starts_with(UNNAMED);
    let end = display.match_indices('(').find(open).map_or(display.len(), |(at, _)| at);
    // A space before it: `operator()` has none, a template's result type does not count as a name either.
    display[..end].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, text, expected) in [
            ("php*", "php8.2", true),
            ("php*", "ph", false),
            ("libopenblas*.so*", "libopenblasp-r0.3.21.so", true),
            ("libopenblas*.so", "libopenblas.so.0", false),
            ("blas_memory_alloc", "blas_memory_alloc2", false),
            ("*zone*x", "a zone of x", true),
            ("aba*aba", "aba", false),
        ] {
            assert_eq!(Pattern::new(pattern).map(|p| p.matches(text)), Some(expected), "{pattern} {text}");
        }
        for nothing in ["", "*", "a*b", "ab", "abc\n"] {
            assert_eq!(Pattern::new(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn parameters_are_no_part_of_a_name() {
        assert_eq!(bare_name("buf_pool_t::create()"), "buf_pool_t::create");
        assert_eq!(bare_name("pool_init"), "pool_init");
        assert_eq!(bare_name("(anonymous namespace)::f(int)"), "(anonymous namespace)::f");
        assert_eq!(bare_name("a::(anonymous namespace)::f(int)"), "a::(anonymous namespace)::f");
    }
}
