//! HotSpot's own description of its structures, which it exports for debuggers of its (src/hotspot/share/runtime/
//! vmStructs.hpp): `gHotSpotVMStructs` lists fields, `gHotSpotVMTypes` types.

use crate::attribution::rules::peek::Peek;
use crate::model::Addr;
use std::collections::HashMap;

/// Entries of a list that are read at most.
const MOST: u64 = 20_000;
const LARGEST_STRIDE: u64 = 256;

/// Fields and sizes of types, by name.
pub(in crate::attribution::rules::jvm) struct Structs {
    /// (type, field) → offset, or the address of a static field.
    fields: HashMap<(String, String), u64>,
    sizes: HashMap<String, u64>,
}

impl Structs {
    pub fn read(variable: &mut dyn FnMut(&str) -> Option<Addr>, peek: &mut Peek<'_, '_>) -> Option<Structs> {
        let mut number = |name: &str| peek.u64(variable(&format!("gHotSpotVM{name}"))?.0);
        let fields = List { first: number("Structs")?, stride: number("StructEntryArrayStride")? };
        let (of, field) = (number("StructEntryTypeNameOffset")?, number("StructEntryFieldNameOffset")?);
        let (is_static, offset) = (number("StructEntryIsStaticOffset")?, number("StructEntryOffsetOffset")?);
        let address = number("StructEntryAddressOffset")?;
        let types = List { first: number("Types")?, stride: number("TypeEntryArrayStride")? };
        let (name, size) = (number("TypeEntryTypeNameOffset")?, number("TypeEntrySizeOffset")?);
        let mut structs = Structs { fields: HashMap::new(), sizes: HashMap::new() };
        for at in fields.entries()? {
            let Some(of) = text(at, of, peek)? else { break };
            let field = text(at, field, peek)??;
            let is_static = peek.u32(at.checked_add(is_static)?)? != 0;
            let value = peek.u64(at.checked_add(if is_static { address } else { offset })?)?;
            structs.fields.insert((of, field), value);
        }
        for at in types.entries()? {
            let Some(name) = text(at, name, peek)? else { break };
            structs.sizes.insert(name, peek.u64(at.checked_add(size)?)?);
        }
        Some(structs)
    }

    pub fn field(&self, of: &str, field: &str) -> Option<u64> {
        self.fields.get(&(of.to_owned(), field.to_owned())).copied()
    }

    pub fn size(&self, of: &str) -> Option<u64> {
        self.sizes.get(of).copied()
    }
}

struct List {
    first: u64,
    stride: u64,
}

impl List {
    fn entries(self) -> Option<impl Iterator<Item = u64>> {
        let List { first, stride } = self;
        let is_sound = first != 0 && (8..=LARGEST_STRIDE).contains(&stride);
        is_sound.then(|| (0..MOST).filter_map(move |n| first.checked_add(n * stride)))
    }
}

/// The string that a word points to; `Some(None)` at a null pointer, which ends a list.
fn text(entry: u64, offset: u64, peek: &mut Peek<'_, '_>) -> Option<Option<String>> {
    match peek.u64(entry.checked_add(offset)?)? {
        0 => Some(None),
        at => peek.string(at).map(Some),
    }
}
