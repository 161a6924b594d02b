//! Which line an instruction is of: the table of locations of 3.11 and later (Objects/locations.md).

/// Of the instruction at `at` bytes; before the first one, the first line. None: it has no line, or the table is not
/// one.
pub(super) fn line_at(table: &[u8], first_line: u32, at: i64) -> Option<u32> {
    if at < 0 {
        return Some(first_line);
    }
    let mut line = i64::from(first_line);
    let mut bytes = table.iter().copied();
    let mut end = 0;
    while let Some(head) = bytes.next() {
        if head & 0x80 == 0 {
            return None;
        }
        let kind = head >> 3 & 15;
        let mut has_line = true;
        match kind {
            // The columns only.
            0..=9 => drop(bytes.next()?),
            10..=12 => {
                line = line.saturating_add(i64::from(kind - 10));
                bytes.nth(1)?;
            }
            13 => line = line.saturating_add(signed(&mut bytes)?),
            14 => {
                line = line.saturating_add(signed(&mut bytes)?);
                for _ in 0..3 {
                    number(&mut bytes)?;
                }
            }
            _ => has_line = false,
        }
        // In units of two bytes.
        end += 2 * (i64::from(head & 7) + 1);
        if at < end {
            return if has_line { u32::try_from(line).ok() } else { None };
        }
    }
    None
}

/// Six bits a byte, least significant first; the seventh says that more follow.
fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let mut value = 0;
    for shift in (0..60).step_by(6) {
        let byte = bytes.next()?;
        value |= i64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
    None
}

fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = number(bytes)?;
    Some(if value & 1 == 1 { -(value >> 1) } else { value >> 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of 3.11.2, for a function of eight lines, three of them one statement with a list comprehension.
    const TABLE: [u8; 62] = [
        128, 0, 216, 9, 10, 216, 9, 10, 136, 81, 137, 21, 216, 9, 30, 208, 9, 30, 149, 85, 152, 49, 145, 88,
        148, 88, 208, 9, 30, 209, 9, 30, 212, 9, 30, 240, 5, 2, 9, 32, 128, 65, 240, 8, 0, 8, 9, 240, 0, 1,
        5, 17, 216, 15, 16, 136, 8, 216, 11, 15, 136, 52,
    ];
    /// What its `co_lines()` says: up to where, which line.
    const LINES: [(i64, u32); 8] = [(2, 1), (4, 2), (8, 3), (12, 3), (60, 4), (64, 2), (68, 6), (72, 7)];

    #[test]
    fn as_the_interpreter_reads_it() {
        let line = |at| line_at(&TABLE, 1, at);
        for (at, expected) in
            (0..72).map(|at| (at, LINES.iter().find(|(end, _)| at < *end).map(|(_, line)| *line)))
        {
            assert_eq!(line(at), expected, "at {at}");
        }
        assert_eq!((line(-2), line(74), line(76)), (Some(1), Some(8), None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(table in prop::collection::vec(any::<u8>(), 0..64), first: u32, at in -9i64..200) {
            let long = [&table[..], &[0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0, 0, 0].repeat(9)].concat();
            let (short, long) = (line_at(&table, first, at), line_at(&long, first, at));
            prop_assert!(short.is_none() || short == long);
        }
    }
}
