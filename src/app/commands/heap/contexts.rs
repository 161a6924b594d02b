//! Names of contexts that were made before anybody watched, from their descriptors in memory.

use super::watch::HeapWatch;
use crate::heap::describe::ContextLayout;
use crate::model::{ContextKey, MmKey, Pid};
use crate::rights::{read_pointer, read_string};
use std::collections::HashSet;

/// A name of a context is a word or two.
const LONGEST_NAME: usize = 255;

/// Reads the memory of running processes. What a descriptor contains is taken as a name only if it has the
/// form of one: the context may be gone by now.
pub fn name_contexts(heap: &mut HeapWatch, layout: ContextLayout) {
    if layout == ContextLayout::default() {
        return;
    }
    let living: Vec<(MmKey, Pid)> =
        heap.heaps.ledgers().iter().map(|ledger| (ledger.mm, ledger.pid)).collect();
    for (mm, pid) in living {
        let Some(ledger) = heap.heaps.ledger_mut(mm) else { continue };
        let mut seen = HashSet::new();
        // A parent that becomes known has a name, and a parent, too.
        loop {
            let fresh: Vec<ContextKey> =
                ledger.nameless_contexts().into_iter().filter(|&key| seen.insert(key)).collect();
            if fresh.is_empty() {
                break;
            }
            for key in fresh {
                let name = pointer(pid, key, layout.name_offset)
                    .and_then(|at| read_string(pid, at, LONGEST_NAME))
                    .filter(|name| is_name(name));
                let parent = name.as_ref().and_then(|_| pointer(pid, key, layout.parent_offset));
                ledger.name_context(key, name.as_deref(), parent.map(ContextKey));
            }
        }
    }
}

fn pointer(pid: Pid, key: ContextKey, offset: Option<u32>) -> Option<u64> {
    read_pointer(pid, key.0.checked_add(u64::from(offset?))?).filter(|&at| at != 0)
}

fn is_name(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| (b' '..=b'~').contains(byte))
}
