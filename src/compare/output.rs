//! What a command printed, as far as two runs of it are to be distinguished: nothing is kept.

use std::hash::{DefaultHasher, Hasher};

/// Printed so far. `exact` is of all bytes; `shape` of the words, with each that has a digit in it as
/// one sign and each row of blanks as one blank: equal for runs that differ in times, numbers and addresses.
#[derive(Clone, Debug)]
pub struct Printed {
    bytes: u64,
    exact: DefaultHasher,
    shape: DefaultHasher,
    /// The shape up to the word that is being read.
    before: DefaultHasher,
    in_word: bool,
    has_digit: bool,
    blank: bool,
}

/// All that was printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Output {
    pub bytes: u64,
    pub exact: u64,
    pub shape: u64,
}

impl Default for Printed {
    fn default() -> Printed {
        Printed {
            bytes: 0,
            exact: DefaultHasher::new(),
            shape: DefaultHasher::new(),
            before: DefaultHasher::new(),
            in_word: false,
            has_digit: false,
            blank: false,
        }
    }
}

impl Printed {
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        bytes.iter().for_each(|&byte| self.byte(byte));
    }

    fn byte(&mut self, byte: u8) {
        self.exact.write_u8(byte);
        if byte.is_ascii_alphanumeric() || b".,:+-%/_".contains(&byte) {
            if !self.in_word {
                self.before = self.shape.clone();
                self.in_word = true;
                self.has_digit = false;
            }
            self.has_digit |= byte.is_ascii_digit();
            self.shape.write_u8(byte);
            self.blank = false;
            return;
        }
        self.end_of_word();
        let blank = byte == b' ' || byte == b'\t';
        if !(blank && self.blank) {
            self.shape.write_u8(if blank { b' ' } else { byte });
        }
        self.blank = blank;
    }

    fn end_of_word(&mut self) {
        if self.in_word && self.has_digit {
            self.shape = self.before.clone();
            self.shape.write_u8(b'0');
        }
        self.in_word = false;
    }

    pub fn end(mut self) -> Output {
        self.end_of_word();
        Output { bytes: self.bytes, exact: self.exact.finish(), shape: self.shape.finish() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&str]) -> Output {
        let mut printed = Printed::default();
        parts.iter().for_each(|part| printed.add(part.as_bytes()));
        printed.end()
    }

    #[test]
    fn numbers_do_not_make_another_shape() {
        let one = of(&["took   12.3ms at 0x7f3a [pid=17]\n"]);
        assert_eq!(one, of(&["took   12", ".3ms at 0x7f", "3a [pid=17]\n"]), "however it arrives");
        let other = of(&["took 1,234ms at 0x7ffc9 [pid=3]\n"]);
        assert_eq!(one.shape, other.shape);
        assert_ne!(one.exact, other.exact);
        for different in ["took 12.3ms at 0x7f3a [tid=17]\n", "took 12.3ms at 0x7f3a [pid=17]", "", "took\n"]
        {
            assert_ne!(one.shape, of(&[different]).shape, "{different:?}");
        }
        assert_eq!(of(&["ok 1"]).shape, of(&["ok 23"]).shape);
        assert_ne!(of(&["ok"]).shape, of(&["no"]).shape);
    }
}
