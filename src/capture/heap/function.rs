//! What a probed function does, as the BPF program's table has it.

use super::skel::types::{
    vmaudit_heap_action as Act, vmaudit_heap_function as Raw, vmaudit_heap_where as ValueSource,
};
use crate::model::{Covers, ProbeSite};
use std::mem::{offset_of, size_of};

const _: () = assert!(size_of::<Raw>() == 24);
const _: () = assert!(offset_of!(Raw, covers) == 8);
const _: () = assert!(offset_of!(Raw, global) == 16);

/// What a function does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Action {
    Allocate = Act::VMAUDIT_ACT_ALLOCATE.0 as u8,
    Free = Act::VMAUDIT_ACT_FREE.0 as u8,
    Resize = Act::VMAUDIT_ACT_RESIZE.0 as u8,
    CreateContext = Act::VMAUDIT_ACT_CREATE.0 as u8,
    ResetContext = Act::VMAUDIT_ACT_RESET.0 as u8,
    DeleteContext = Act::VMAUDIT_ACT_DELETE.0 as u8,
    MoveContext = Act::VMAUDIT_ACT_MOVE.0 as u8,
}

/// Where a value is when the function is entered, or when it has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Where {
    #[default]
    Nowhere,
    /// 1 to 6.
    Argument(u8),
    Returned,
    /// This argument points to it, once the function has returned 0.
    Pointee(u8),
    /// In the variable of [`ProbeFunction::global`].
    Global,
}

impl Where {
    fn code(self) -> u8 {
        let at = |place: ValueSource, argument: u8| place.0 as u8 + (argument & 7);
        match self {
            Where::Nowhere => at(ValueSource::VMAUDIT_WHERE_NONE, 0),
            Where::Argument(n) => at(ValueSource::VMAUDIT_WHERE_NONE, n),
            Where::Returned => at(ValueSource::VMAUDIT_WHERE_RETURNED, 0),
            Where::Pointee(n) => at(ValueSource::VMAUDIT_WHERE_POINTEE, n),
            Where::Global => at(ValueSource::VMAUDIT_WHERE_GLOBAL, 0),
        }
    }
}

/// One function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeFunction {
    pub action: Action,
    pub size: Where,
    /// The size is this argument times `size`; 0: there is none.
    pub factor: u8,
    /// What is freed or resized.
    pub pointer: Where,
    /// The new block, the new context.
    pub result: Where,
    pub context: Where,
    pub parent: Where,
    pub name: Where,
    /// Of a reset or deletion; what the event says.
    pub covers: Covers,
    /// Of a function that frees: what it calls in turn does not count.
    pub bracket: bool,
    /// Bytes from the probe to the variable that [`Where::Global`] means: the same wherever the
    /// file is mapped.
    pub global: i64,
}

impl ProbeFunction {
    /// A function that does this with nothing yet.
    pub fn new(action: Action) -> ProbeFunction {
        ProbeFunction {
            action,
            size: Where::Nowhere,
            factor: 0,
            pointer: Where::Nowhere,
            result: Where::Nowhere,
            context: Where::Nowhere,
            parent: Where::Nowhere,
            name: Where::Nowhere,
            covers: Covers::Itself,
            bracket: false,
            global: 0,
        }
    }

    /// Whether its return has to be probed.
    pub fn needs_return(&self) -> bool {
        match self.action {
            Action::Free => self.bracket,
            _ => true,
        }
    }

    /// As probed this far behind its entry.
    pub fn moved(self, site: &ProbeSite) -> ProbeFunction {
        let argument =
            |n: u8| n.checked_sub(1).and_then(|n| site.arguments.get(usize::from(n))).copied().unwrap_or(n);
        let at = |value: Where| match value {
            Where::Argument(n) => Where::Argument(argument(n)),
            Where::Pointee(n) => Where::Pointee(argument(n)),
            Where::Nowhere | Where::Returned | Where::Global => value,
        };
        ProbeFunction {
            size: at(self.size),
            factor: argument(self.factor),
            pointer: at(self.pointer),
            result: at(self.result),
            context: at(self.context),
            parent: at(self.parent),
            name: at(self.name),
            global: self.global - i64::from(site.after_entry),
            ..self
        }
    }

    /// The arguments that the probe reads: 1 to 6, a bit each, from the lowest on.
    pub fn arguments(&self) -> u8 {
        let values = [self.size, self.pointer, self.result, self.context, self.parent, self.name];
        let read = values.into_iter().map(|value| match value {
            Where::Argument(n) | Where::Pointee(n) => n,
            Where::Nowhere | Where::Returned | Where::Global => 0,
        });
        read.chain([self.factor]).filter_map(|n| n.checked_sub(1)).fold(0, |set, n| set | 1 << (n & 7))
    }

    /// `struct vmaudit_heap_function`.
    pub(super) fn encode(&self) -> [u8; size_of::<Raw>()] {
        let mut bytes = [0; size_of::<Raw>()];
        let codes = [
            self.action as u8,
            self.size.code(),
            self.factor & 7,
            self.pointer.code(),
            self.result.code(),
            self.context.code(),
            self.parent.code(),
            self.name.code(),
            self.covers as u8,
            u8::from(self.bracket),
        ];
        bytes[..codes.len()].copy_from_slice(&codes);
        bytes[offset_of!(Raw, global)..].copy_from_slice(&self.global.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_codes_where_the_program_expects_them() {
        let function = ProbeFunction {
            size: Where::Argument(3),
            result: Where::Pointee(1),
            context: Where::Global,
            covers: Covers::Tree,
            global: -8,
            ..ProbeFunction::new(Action::Allocate)
        };
        let bytes = function.encode();
        assert_eq!(bytes[..10], [1, 3, 0, 0, 33, 64, 0, 0, 2, 0]);
        assert_eq!(bytes[16..], (-8i64).to_ne_bytes());
    }
}
