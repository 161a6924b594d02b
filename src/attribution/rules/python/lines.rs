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
                line += i64::from(kind - 10);
                bytes.nth(1)?;
            }
            13 => line += signed(&mut bytes)?,
            14 => {
                line += signed(&mut bytes)?;
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
