//! Interpreters in the processes that count: published to the library, and the functions that it found.

use super::heaps::Counting;
use crate::capture::preload::Area;
use crate::model::stack::{FoundInterpreter, ManagedCode, NotReadable};
use crate::model::{Frame, StackTable};
use crate::objects::FileKey;
use crate::session::managed::{cut, interpreter_in, place};
use crate::unwind::Unwinder;
use std::collections::{BTreeSet, HashMap};

/// In which files there are some.
#[derive(Default)]
pub struct Interpreters {
    found: HashMap<FileKey, Option<Result<FoundInterpreter, NotReadable>>>,
}

impl Interpreters {
    /// To be called when it is known what a process has mapped.
    pub fn publish(&mut self, process: &mut Counting, unwinder: &Unwinder) {
        if process.area.is_interpreted() {
            return;
        }
        for file in unwinder.code_files(process.mm) {
            let found = self.found.entry(file.key).or_insert_with(|| interpreter_in(file.object));
            let found = match found {
                Some(Ok(found)) => found,
                Some(Err(why)) => {
                    process.interpreted.refused.insert(why.0.clone());
                    continue;
                }
                None => continue,
            };
            let Some(address) = file.object.layout().svma_of(file.offset) else { continue };
            let bias = file.start.0.wrapping_sub(address);
            let end = file.object.layout().segments.iter().map(|each| each.vaddr + each.mem_size).max();
            let within = bias..bias.wrapping_add(end.unwrap_or(0));
            process.interpreted.published += 1;
            process.area.set_interpreter(found, bias, within);
            process.area.publish_interpreter(process.interpreted.published);
            return;
        }
    }
}

/// Of one process.
#[derive(Default)]
pub struct Interpreted {
    /// How often an interpreter was published: libraries come and go.
    published: u32,
    /// Why frames are not read: sentences.
    pub refused: BTreeSet<String>,
    descriptions: HashMap<u32, Option<ManagedCode>>,
    /// None: it is not shown.
    frames: HashMap<(u32, i32), Option<Frame>>,
}

impl Interpreted {
    /// Of a word of a stack.
    pub fn frame(
        &mut self,
        area: &Area,
        (description, at): (u32, i32),
        stacks: &mut StackTable,
    ) -> Option<Frame> {
        if description == 0 {
            return Some(cut(stacks));
        }
        let descriptions = &mut self.descriptions;
        *self.frames.entry((description, at)).or_insert_with(|| {
            let code = descriptions.entry(description).or_insert_with(|| area.description(description));
            let place = place(code.as_ref()?, i64::from(at) as u64)?;
            Some(stacks.managed_frame(place))
        })
    }
}
