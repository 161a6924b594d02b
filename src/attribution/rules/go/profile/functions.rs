//! Names and lines of addresses in a stack of the runtime's own.

use super::module::Module;
use crate::attribution::rules::peek::Peek;
use crate::model::Addr;
use crate::model::hash::IntMap;
use crate::model::heap::runtime::{OwnFrame, OwnFunction};

pub struct Functions<'m> {
    module: &'m Module,
    frames: IntMap<u64, OwnFrame>,
}

impl<'m> Functions<'m> {
    pub fn of(module: &'m Module) -> Functions<'m> {
        Functions { module, frames: IntMap::default() }
    }

    /// The frame of a return address.
    pub fn frame(&mut self, at: u64, peek: &mut Peek<'_, '_>) -> OwnFrame {
        if let Some(known) = self.frames.get(&at) {
            return known.clone();
        }
        let frame = self.read(at, peek).unwrap_or(OwnFrame { at: Addr(at), ..OwnFrame::default() });
        self.frames.insert(at, frame.clone());
        frame
    }

    /// Of what stands at an address each has an address of its own: here it is the innermost.
    fn read(&self, at: u64, peek: &mut Peek<'_, '_>) -> Option<OwnFrame> {
        // The call is before the address that it returns to.
        let call = at.checked_sub(1)?;
        let function = self.module.table.function(call, peek)?;
        let called = self.module.table.calls(function, call, peek)?.into_iter().next()?;
        let (file, line) = called.location.unzip();
        let name = shortened(&called.name);
        let offset = at - function.start;
        let function = Some(OwnFunction { name, offset, inlined: called.inlined });
        Some(OwnFrame { at: Addr(at), function, file, line })
    }

    /// Where a function of that name begins and the next one does.
    pub fn by_name(&self, name: &str, peek: &mut Peek<'_, '_>) -> Option<(u64, u64)> {
        let function = self.module.table.by_name(name, peek)?;
        Some((function.start, function.end))
    }
}

/// `main.gen[go.shape.int_0]` as Go prints it: `main.gen[...]`.
fn shortened(name: &str) -> String {
    match (name.find('['), name.rfind(']')) {
        (Some(from), Some(to)) if from < to => format!("{}[...]{}", &name[..from], &name[to + 1..]),
        _ => name.to_owned(),
    }
}
