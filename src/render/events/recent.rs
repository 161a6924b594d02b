//! Stacks that were printed not long ago, as they were printed: most events have one that was there before.

use crate::model::StackId;
use crate::model::hash::IntMap;

/// Text that is kept at most in each of the two generations.
const BYTES: usize = 8 << 20;

pub(super) struct RenderedStack {
    pub is_shown: bool,
    pub rendered: String,
}

/// When the young generation is full, it becomes the old one, and what was not used since the last time is
/// forgotten.
#[derive(Default)]
pub(super) struct RenderedStacks {
    young: IntMap<StackId, RenderedStack>,
    old: IntMap<StackId, RenderedStack>,
    /// Of the young ones.
    bytes: usize,
}

impl RenderedStacks {
    pub fn get_or_render(&mut self, id: StackId, render: impl FnOnce() -> RenderedStack) -> &RenderedStack {
        if !self.young.contains_key(&id) {
            let stack = self.old.remove(&id).unwrap_or_else(render);
            if self.bytes >= BYTES {
                self.old = std::mem::take(&mut self.young);
                self.bytes = 0;
            }
            self.bytes += size_of::<(StackId, RenderedStack)>() + stack.rendered.capacity();
            self.young.insert(id, stack);
        }
        &self.young[&id]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_memory_is_bounded() {
        let mut stacks = RenderedStacks::default();
        let mut rendered = 0;
        for round in 0..20_000u32 {
            // One that each round uses, and one that is never used again.
            for id in [0, round + 1] {
                let stack = stacks.get_or_render(StackId(id), || {
                    rendered += 1;
                    RenderedStack { is_shown: true, rendered: id.to_string().repeat(2000) }
                });
                assert_eq!(stack.rendered, id.to_string().repeat(2000));
            }
            let kept = stacks.young.values().chain(stacks.old.values());
            assert!(kept.map(|stack| stack.rendered.len()).sum::<usize>() < 2 * (BYTES + (16 << 10)));
            assert!(round < 5000 || stacks.old.len() + stacks.young.len() > 700);
        }
        assert_eq!(rendered, 20_001);
    }
}
