//! Addresses and names as the report has them.

pub(super) fn hex(n: u64) -> String {
    // By hand: a report of tens of thousands of regions has four times as many addresses.
    let digits = (u64::BITS - n.leading_zeros()).div_ceil(4).max(1);
    let mut out = String::with_capacity(2 + digits as usize);
    out.push_str("0x");
    out.extend((0..digits).rev().filter_map(|at| char::from_digit((n >> (4 * at)) as u32 & 0xf, 16)));
    out
}

/// Any bytes as text; what is not UTF-8 becomes U+FFFD.
pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::hex;

    #[test]
    fn addresses_are_written_as_ever() {
        let numbers = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, 0x7f12_3456_789a >> bit]);
        for n in numbers.chain([0, u64::MAX]) {
            assert_eq!(hex(n), format!("{n:#x}"));
        }
    }
}
