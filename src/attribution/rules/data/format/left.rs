//! What a setting leaves of the memory that a rule is about.

use std::str::FromStr;

/// Percent, of the whole.
const WHOLE: u64 = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    Nothing,
    /// So many of the things, of the same size.
    Things(u64),
    /// Bytes in all.
    Bytes(u64),
    /// Bytes of each of them.
    BytesEach(u64),
    Percent(u64),
}

/// What it may be written as.
pub const ALLOWED: &str = "\"nothing\", \"N of them\", \"N MiB\", \"N MiB each\" or \"N %\" (KiB, MiB, GiB)";

impl Left {
    /// Of `whole` bytes in `things` things.
    pub fn of(self, whole: u64, things: u64) -> u64 {
        let part = |number: u64, of: u64| {
            let bytes = u128::from(whole) * u128::from(number.min(of)) / u128::from(of.max(1));
            u64::try_from(bytes).unwrap_or(whole)
        };
        match self {
            Left::Nothing => 0,
            Left::Things(left) => part(left, things),
            Left::Bytes(left) => left.min(whole),
            Left::BytesEach(left) => left.saturating_mul(things).min(whole),
            Left::Percent(left) => part(left, WHOLE),
        }
    }
}

impl FromStr for Left {
    type Err = ();
    fn from_str(text: &str) -> Result<Left, ()> {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        match words.as_slice() {
            ["nothing"] => Ok(Left::Nothing),
            [left, "of", "them"] => Ok(Left::Things(number(left)?)),
            [left, "%"] => Some(number(left)?).filter(|&left| left < WHOLE).map(Left::Percent).ok_or(()),
            [left, unit] => Ok(Left::Bytes(bytes(number(left)?, unit)?)),
            [left, unit, "each"] => Ok(Left::BytesEach(bytes(number(left)?, unit)?)),
            _ => Err(()),
        }
    }
}

/// `64 MiB`.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    bytes(number.parse().ok()?, unit).ok()
}

fn bytes(number: u64, unit: &str) -> Result<u64, ()> {
    let size: u64 = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(()),
    };
    number.checked_mul(size).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_never_more_than_there_is() {
        for (text, expected) in [
            ("nothing", 0),
            ("1 of them", 100),
            ("9 of them", 400),
            ("1 KiB", 400),
            ("0 MiB", 0),
            ("1 GiB each", 400),
            ("25 %", 100),
        ] {
            assert_eq!(text.parse::<Left>().map(|left| left.of(400, 4)), Ok(expected), "{text}");
        }
        for wrong in ["", "all", "1", "1 B", "1 of", "100 %", "-1 %", "1 MiB of", "99999999999 GiB"] {
            assert_eq!(wrong.parse::<Left>(), Err(()), "{wrong}");
        }
        assert_eq!(Left::Things(1).of(u64::MAX, 0), 0, "of nothing");
    }
}
