//! Unsigned numbers as signed ones. No figure of a process comes near the bounds; a damaged file's may.

/// `n`, or the largest number that there is.
pub fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// `after` - `before`, or the bound that lies on its side.
pub fn change(before: u64, after: u64) -> i64 {
    let difference = i128::from(after) - i128::from(before);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}
