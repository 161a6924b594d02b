//! Byte counts for people.

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// `110.2 MiB`, `132 KiB`, `12 B`: one decimal from MiB up; whole KiB without one.
pub fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0 => return "0".to_string(),
        b if b < KIB => return format!("{b} B"),
        b if b < MIB && b.is_multiple_of(KIB) => return format!("{} KiB", b / KIB),
        // 1023.95 KiB and more would print as 1024.0
        b if b < MIB - KIB / 20 => (KIB, "KiB"),
        b if b < GIB - MIB / 20 => (MIB, "MiB"),
        b if b < TIB - GIB / 20 => (GIB, "GiB"),
        _ => (TIB, "TiB"),
    };
    let tenths = (u128::from(bytes) * 10 + u128::from(unit / 2)) / u128::from(unit);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// A call's argument: exact where a unit divides it (`128 MiB`, `8196 KiB`), else as [`size`].
pub fn exact_size(bytes: u64) -> String {
    for (unit, name) in [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) && bytes / unit < 100_000 {
            return format!("{} {name}", bytes / unit);
        }
    }
    size(bytes)
}

/// `1,284`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1 call`, `1,234 calls`.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(n), if n == 1 { "" } else { "s" })
}

/// `two`, … `twelve`, then digits.
pub fn count_word(n: u64) -> String {
    const WORDS: [&str; 13] = [
        "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
        "twelve",
    ];
    usize::try_from(n).ok().and_then(|i| WORDS.get(i)).map_or_else(|| thousands(n), |w| (*w).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_in_the_example() {
        assert_eq!(size(132 * KIB), "132 KiB");
        assert_eq!(size(64 * MIB), "64.0 MiB");
        assert_eq!(size(115_553_075), "110.2 MiB");
        assert_eq!(size(MIB - 1), "1.0 MiB");
        assert_eq!(size(GIB - 1), "1.0 GiB");
        assert_eq!(size(0), "0");
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn exact_sizes_keep_the_argument() {
        assert_eq!(exact_size(128 * MIB), "128 MiB");
        assert_eq!(exact_size(8_392_704), "8196 KiB");
        assert_eq!(exact_size(1_974_096), "1.9 MiB");
        assert_eq!(exact_size(4 * TIB), "4 TiB");
    }

    #[test]
    fn numbers() {
        assert_eq!(thousands(1284), "1,284");
        assert_eq!(thousands(999), "999");
        assert_eq!(count_word(2), "two");
        assert_eq!(count_word(1300), "1,300");
    }
}
