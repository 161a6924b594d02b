//! Thousands of stacks that differ in few frames: each frame is kept once.

use std::sync::Arc;
use vmaudit::model::stack::{Frame, Stack};
use vmaudit::model::{Completeness, FrameKind, StackTable};
use vmaudit::objects::FileCache;
use vmaudit::report::{SharedFrames, named_stack};
use vmaudit::symbolize::{Config, Symbolizer};

#[test]
fn stacks_share_frames_that_are_the_same() {
    let mut table = StackTable::default();
    let at = |address| Frame { module: None, address, kind: FrameKind::ReturnAddress };
    let mut intern = |frames: [u64; 2]| {
        table.intern(&Stack { frames: frames.map(at).to_vec(), completeness: Completeness::Complete })
    };
    let ids = [intern([1, 3]), intern([2, 3])];
    let names = Symbolizer::new(Config::default()).symbolize(&table, ids, &mut FileCache::default());
    let mut shared = SharedFrames::default();
    let [one, other] = ids.map(|id| shared.named_stack(id, &table, &names));
    assert!(Arc::ptr_eq(&one.frames[1], &other.frames[1]));
    assert_ne!(one.frames[0], other.frames[0]);
    assert_eq!(one, named_stack(ids[0], &table, &names));
}
