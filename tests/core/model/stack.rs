//! `model::stack`.

use vmaudit::model::stack::Completeness;
use vmaudit::model::stack::Frame;
use vmaudit::model::stack::FrameKind;
use vmaudit::model::stack::ModuleId;
use vmaudit::model::stack::Stack;
use vmaudit::model::stack::StackTable;

#[test]
fn equal_stacks_have_one_number_and_come_back_whole() {
    let frame = |address, kind| Frame { module: Some(ModuleId(3)), address, kind };
    let top = frame(16, FrameKind::InstructionPointer);
    let (caller, root) = (frame(16, FrameKind::ReturnAddress), frame(7, FrameKind::Guess));
    let mut table = StackTable::default();
    let long = table.intern_frames(&[top, caller, root], Completeness::Complete);
    let short = table.intern_frames(&[top, caller], Completeness::Complete);
    let cut = table.intern_frames(&[top, caller], Completeness::Truncated);
    assert_eq!(table.len(), 3, "a part, or another end, is another stack");
    assert_eq!(table.intern_frames(&[top, caller, root], Completeness::Complete), long);
    assert_eq!(table.len(), 3);
    assert_eq!(table.stack(long).frames, [top, caller, root]);
    let part = Stack { frames: vec![top, caller], completeness: Completeness::Complete };
    assert_eq!(table.stack(short), part);
    assert_eq!(table.stack(cut).completeness, Completeness::Truncated);
}
