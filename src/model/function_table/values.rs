//! Tables of values that change along a function: pairs of a difference and how far it goes on.

use super::{Function, FunctionTable, ReadBytes, u8_at};

/// Steps of a table: no function is so long.
const MOST_STEPS: usize = 1 << 18;

/// `sys.PCQuantum`: of instructions.
pub(super) const QUANTUM: u64 = if cfg!(target_arch = "x86_64") { 1 } else { 4 };

impl FunctionTable {
    /// The value that a table of the function has at an address; none that is negative.
    pub(super) fn value(
        &self,
        table: u32,
        (function, at): (Function, u64),
        bytes: &mut dyn ReadBytes,
    ) -> Option<i32> {
        if table == 0 {
            return None;
        }
        let mut from = u64::from(table);
        let (mut place, mut value) = (function.start, -1i32);
        for step in 0..MOST_STEPS {
            let delta = self.number(&mut from, bytes)?;
            if delta == 0 && step > 0 {
                return None;
            }
            value = value.wrapping_add((delta >> 1) as i32 ^ -((delta & 1) as i32));
            let length = u64::from(self.number(&mut from, bytes)?) * QUANTUM;
            place = place.saturating_add(length);
            if at < place {
                return Some(value).filter(|&value| value >= 0);
            }
        }
        None
    }

    /// The number of variable length at a place in the tables, which moves on behind it.
    fn number(&self, from: &mut u64, bytes: &mut dyn ReadBytes) -> Option<u32> {
        let mut value: u32 = 0;
        for shift in (0..35).step_by(7) {
            let byte = if *from < self.values.len {
                u8_at(bytes, self.values.at.checked_add(*from)?)?
            } else {
                return None;
            };
            *from += 1;
            value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}
