//! Reading x86-64 machine code backwards: does a call instruction end here?

/// Longest form decoded: REX, opcode, ModRM, SIB, disp32.
pub const LONGEST_CALL: usize = 8;

/// The call instruction that ends at a return address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `call rel32`: the distance from the return address to the called function.
    Direct(i32),
    /// `call *x(%rip)`: the distance from the return address to where the function's address is.
    Slot(i32),
    /// Through a register or other memory.
    Indirect,
}

/// Decides whether `code`, the bytes just before an address, ends in a call instruction (Intel
/// SDM volume 2, CALL: E8 cd, and FF /2). Other instructions can end in the same bytes: this
/// makes a return address likely, it does not prove one.
pub fn call_before(code: &[u8]) -> Option<Call> {
    let tail = |len: usize| code.len().checked_sub(len).and_then(|at| code.get(at..));
    if let Some([0xe8, rel @ ..]) = tail(5)
        && let Ok(rel) = rel.try_into()
    {
        return Some(Call::Direct(i32::from_le_bytes(rel)));
    }
    if let Some([0xff, 0x15, distance @ ..]) = tail(6)
        && let Ok(distance) = distance.try_into()
    {
        return Some(Call::Slot(i32::from_le_bytes(distance)));
    }
    let indirect = (2..=7).any(|len| matches!(tail(len), Some([0xff, rest @ ..]) if is_call_operand(rest)));
    indirect.then_some(Call::Indirect)
}

/// ModRM and what follows, for FF /2: the length has to fit exactly.
fn is_call_operand(operand: &[u8]) -> bool {
    let Some(&modrm) = operand.first() else { return false };
    if (modrm >> 3) & 7 != 2 {
        return false;
    }
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let has_sib = mode != 3 && rm == 4;
    let displacement = match (mode, rm) {
        (0, 5) => 4,
        (0, 4) if operand.get(1).is_some_and(|sib| sib & 7 == 5) => 4,
        (1, _) => 1,
        (2, _) => 4,
        _ => 0,
    };
    operand.len() == 1 + usize::from(has_sib) + displacement
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_call() {
        assert_eq!(call_before(&[0x90, 0xe8, 0x10, 0, 0, 0]), Some(Call::Direct(0x10)));
        assert_eq!(call_before(&[0xe8, 0xf0, 0xff, 0xff, 0xff]), Some(Call::Direct(-16)));
        assert_eq!(call_before(&[0xff, 0x15, 1, 2, 3, 4]), Some(Call::Slot(0x0403_0201)));
        let indirect: [&[u8]; 7] = [
            &[0xff, 0xd0],                            // call *%rax
            &[0x41, 0xff, 0xd4],                      // call *%r12
            &[0xff, 0x50, 0x10],                      // call *0x10(%rax)
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4],          // call *x(,%rax,8)
            &[0xff, 0x54, 0x24, 0x08],                // call *8(%rsp)
            &[0x41, 0xff, 0x94, 0x24, 0x98, 0, 0, 0], // call *0x98(%r12)
            &[0xff, 0x90, 0x20, 1, 0, 0],             // call *0x120(%rax)
        ];
        for code in indirect {
            assert_eq!(call_before(code), Some(Call::Indirect), "{code:x?}");
        }
    }

    #[test]
    fn other_code() {
        for code in [&[0xff, 0xe0][..], &[0xc3], &[], &[0xff, 0x25, 0, 0, 0, 0], &[0x0f, 0x05], &[0xff, 0x50]]
        {
            assert_eq!(call_before(code), None, "{code:x?}");
        }
    }
}
