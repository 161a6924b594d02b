//! Methods: their names, and of interpreted ones the line (src/hotspot/share/oops/constMethod.hpp, constantPool.hpp,
//! symbol.hpp, code/compressedStream.hpp).

use super::Now;
use super::structs::Structs;
use crate::attribution::rules::peek::Peek;
use crate::model::SourceLine;
use crate::model::stack::GeneratedFunction;

/// Bytes of a table of line numbers that are read.
const LONGEST_TABLE: usize = 64 << 10;
/// In `ConstMethod::_flags`: a table of line numbers follows the instructions.
const HAS_LINES: u32 = 1;
/// From this version on no byte of a compressed number is 0.
const WITHOUT_ZEROS: u32 = 20;
const LONGEST_NAME: u16 = 4096;

pub(super) struct Methods {
    constants_of: u64,
    const_method: u64,
    const_method_size: u64,
    flags: u64,
    code_size: u64,
    name_index: u64,
    holder: u64,
    pool_size: u64,
    class_name: u64,
    symbol_length: u64,
    symbol_text: u64,
    /// Of the class, or of its constants.
    class_source: Option<u64>,
    pool_source: Option<u64>,
    /// What is taken from each byte of a compressed number.
    excluded: u64,
}

impl Methods {
    pub fn of(structs: &Structs, peek: &mut Peek<'_, '_>) -> Option<Methods> {
        let field = |of: &str, field: &str| structs.field(of, field);
        let version = field("Abstract_VM_Version", "_vm_major_version").and_then(|at| peek.u32(at))?;
        Some(Methods {
            const_method: field("Method", "_constMethod")?,
            constants_of: field("ConstMethod", "_constants")?,
            const_method_size: structs.size("ConstMethod")?,
            flags: field("ConstMethod", "_flags._flags").or_else(|| field("ConstMethod", "_flags"))?,
            code_size: field("ConstMethod", "_code_size")?,
            name_index: field("ConstMethod", "_name_index")?,
            holder: field("ConstantPool", "_pool_holder")?,
            pool_size: structs.size("ConstantPool")?,
            class_name: field("Klass", "_name")?,
            symbol_length: field("Symbol", "_length")?,
            symbol_text: field("Symbol", "_body").or_else(|| field("Symbol", "_body[0]"))?,
            class_source: field("InstanceKlass", "_source_file_name_index"),
            pool_source: field("ConstantPool", "_source_file_name_index"),
            excluded: u64::from(version >= WITHOUT_ZEROS),
        })
    }

    /// `CLASS.METHOD`; with the line of `instruction`, which has to be one of the method's.
    pub fn named(
        &self,
        method: u64,
        instruction: Option<u64>,
        now: &mut Now<'_, '_>,
    ) -> Option<GeneratedFunction> {
        let constant = now.u64(method.checked_add(self.const_method)?)?;
        let pool = now.u64(constant.checked_add(self.constants_of)?)?;
        let class = now.u64(pool.checked_add(self.holder)?)?;
        let code = constant.checked_add(self.const_method_size)?;
        let size = u64::from(now.u16(constant.checked_add(self.code_size)?)?);
        let at = match instruction {
            // A native method has none.
            Some(0) if size == 0 => None,
            Some(instruction) => Some(instruction.checked_sub(code).filter(|&at| at < size.max(1))?),
            None => None,
        };
        let class_name = now.u64(class.checked_add(self.class_name)?)?;
        let class_name = self.symbol(class_name, now)?.replace('/', ".");
        let index = now.u16(constant.checked_add(self.name_index)?)?;
        let name = self.constant(pool, index, now)?;
        if class_name.is_empty() || name.is_empty() {
            return None;
        }
        let line = at.and_then(|at| self.line(constant, (code.checked_add(size)?, at), now));
        let place = line.and_then(|line| Some(SourceLine { file: self.source(class, pool, now)?, line }));
        Some(GeneratedFunction { name: format!("{class_name}.{name}"), place })
    }

    fn source(&self, class: u64, pool: u64, now: &mut Now<'_, '_>) -> Option<String> {
        let index = match (self.pool_source, self.class_source) {
            (Some(at), _) => now.u16(pool.checked_add(at)?)?,
            (None, Some(at)) => now.u16(class.checked_add(at)?)?,
            (None, None) => return None,
        };
        (index != 0).then(|| self.constant(pool, index, now)).flatten()
    }

    fn constant(&self, pool: u64, index: u16, now: &mut Now<'_, '_>) -> Option<String> {
        let at = pool.checked_add(self.pool_size)?.checked_add(u64::from(index) * 8)?;
        let symbol = now.u64(at)?;
        self.symbol(symbol, now)
    }

    fn symbol(&self, symbol: u64, now: &mut Now<'_, '_>) -> Option<String> {
        let length =
            now.u16(symbol.checked_add(self.symbol_length)?).filter(|&length| length <= LONGEST_NAME)?;
        let text = now.bytes(symbol.checked_add(self.symbol_text)?, usize::from(length))?;
        let text = String::from_utf8(text).ok()?;
        (!text.chars().any(char::is_control)).then_some(text)
    }

    /// Of the instruction that is `at` bytes into the code, by the table that begins at `table`.
    fn line(&self, constant: u64, (table, at): (u64, u64), now: &mut Now<'_, '_>) -> Option<u32> {
        if now.u32(constant.checked_add(self.flags)?)? & HAS_LINES == 0 {
            return None;
        }
        let mut bytes = Vec::new();
        // It ends with a byte of its own, not at a known place.
        let mut more = || {
            let step = if bytes.is_empty() { 64 } else { bytes.len() };
            let next = now.bytes(table.checked_add(bytes.len() as u64)?, step)?;
            bytes.extend(next);
            (bytes.len() <= LONGEST_TABLE).then(|| line_of(&bytes, at, self.excluded))
        };
        loop {
            match more()? {
                Lookup::More => {}
                Lookup::Found(line) => return line,
            }
        }
    }
}

enum Lookup {
    /// The table goes on behind these bytes.
    More,
    Found(Option<u32>),
}

/// `CompressedLineNumberReadStream`: pairs of differences, a byte each where they are small.
fn line_of(table: &[u8], at: u64, excluded: u64) -> Lookup {
    const LONG: u8 = 0xff;
    let mut rest = table.iter().copied();
    let (mut instruction, mut line) = (0i64, 0i64);
    let mut found = None;
    loop {
        let (by_instruction, by_line) = match rest.next() {
            None => return Lookup::More,
            Some(0) => return Lookup::Found(found),
            Some(LONG) => {
                let mut signed = || number(&mut rest, excluded).map(|n| (n >> 1) as i64 ^ -((n & 1) as i64));
                let (Some(instruction), Some(line)) = (signed(), signed()) else { return Lookup::More };
                (instruction, line)
            }
            Some(byte) => (i64::from(byte >> 3), i64::from(byte & 7)),
        };
        instruction += by_instruction;
        line += by_line;
        if u64::try_from(instruction).is_ok_and(|instruction| instruction > at) {
            return Lookup::Found(found);
        }
        found = u32::try_from(line).ok().filter(|&line| line != 0);
    }
}

/// UNSIGNED5: up to five bytes, each of which below 192 is the last.
fn number(rest: &mut impl Iterator<Item = u8>, excluded: u64) -> Option<u64> {
    let mut sum = 0u64;
    for shift in [0, 6, 12, 18, 24] {
        let byte = u64::from(rest.next()?).checked_sub(excluded)?;
        sum += byte << shift;
        if byte < 192 - excluded {
            break;
        }
    }
    Some(sum & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_instructions() {
        // 0 → 10, 3 → 12, 300 → 9 (three back), end; a byte each where that is enough.
        let old = [0xff, 0, 20, 0x1a, 0xff, 210, 6, 5, 0];
        let of = |at| match line_of(&old, at, 0) {
            Lookup::Found(line) => line,
            Lookup::More => panic!("the table has an end"),
        };
        assert_eq!((of(0), of(2), of(3), of(296)), (Some(10), Some(10), Some(12), Some(12)));
        assert_eq!(of(300), Some(9));
        assert!(matches!(line_of(&old[..4], 400, 0), Lookup::More));
        let new = [0xff, 1, 21, 0x1a, 0xff, 211, 7, 6, 0];
        assert!(matches!(line_of(&new, 3, 1), Lookup::Found(Some(12))));
        assert!(matches!(line_of(&[0], 3, 1), Lookup::Found(None)));
    }
}
