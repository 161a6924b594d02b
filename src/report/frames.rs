//! The role of each frame of a stack, and the frame that requested the memory.

use super::model::{Frame, Stack};
pub use crate::attribution::code::Role;
pub use crate::attribution::role::role_of_module;
use crate::attribution::role::{on_behalf_of, role_of, role_of_managed};
use std::sync::Arc;

impl Stack {
    /// Frames get their roles here. `completeness` as in the report.
    pub fn new(frames: Vec<Frame>, completeness: &str) -> Stack {
        let with_role = |frame: Frame| {
            let frame = frame.with_true_role();
            let judged = Judged::of(&frame);
            (Arc::new(frame), judged)
        };
        let (frames, judged): (Vec<_>, Vec<_>) = frames.into_iter().map(with_role).unzip();
        Stack::of_judged(frames, &judged, completeness)
    }

    /// Of frames that other stacks have, too, and that were judged already: one judgement each.
    pub(super) fn of_judged(frames: Vec<Arc<Frame>>, judged: &[Judged], completeness: &str) -> Stack {
        let truncated = completeness == "truncated";
        let caller = caller_of(judged);
        Stack { frames, truncated, completeness: completeness.to_owned(), caller }
    }

    /// Recomputes the caller, of frames that have their roles.
    pub(super) fn judge(&mut self, judged: &[Judged]) {
        self.caller = caller_of(judged);
    }

    /// Without a second frame for the system call's wrapper.
    pub fn without_aliases(&self) -> &[Arc<Frame>] {
        let aliases = self.frames.iter().take_while(|f| f.inlined).count();
        match self.frames.get(aliases) {
            Some(wrapper) if wrapper.role == Role::Wrapper => &self.frames[aliases..],
            _ => &self.frames,
        }
    }

    /// As [`Stack::without_aliases`]; where an interpreter's functions are on it, without what the interpreter itself
    /// does between and below them. And how many frames that leaves out.
    pub fn as_written(&self) -> (Vec<&Frame>, usize) {
        let all = self.without_aliases();
        let Some(first) = all.iter().position(|f| f.managed) else {
            return (all.iter().map(Arc::as_ref).collect(), 0);
        };
        let evaluates = |pair: &&[Arc<Frame>]| pair[0].managed && !pair[1].managed;
        let mut interpreters: Vec<&str> =
            all.windows(2).filter(evaluates).map(|pair| pair[1].module.as_str()).collect();
        interpreters.sort_unstable();
        interpreters.dedup();
        let is_own =
            |f: &Frame| !f.managed && f.role != Role::Start && interpreters.contains(&f.module.as_str());
        let shown = all.iter().enumerate().filter(|(at, f)| *at < first || !is_own(f));
        let shown: Vec<&Frame> = shown.map(|(_, f)| f.as_ref()).collect();
        let left_out = all.len() - shown.len();
        (shown, left_out)
    }

    /// Whose stack called the outermost frame, where that is another, which is not copied: `goroutine`.
    pub fn on_behalf_of(&self) -> Option<&'static str> {
        self.frames.last().and_then(|f| f.symbol.as_deref()).and_then(on_behalf_of)
    }
}

impl Frame {
    /// Whatever another version made of it.
    pub(super) fn with_true_role(self) -> Frame {
        Frame { role: self.true_role(), ..self }
    }

    /// By its names.
    pub(super) fn true_role(&self) -> Role {
        match self.managed {
            true => role_of_managed(self.file.as_deref().unwrap_or(&self.module), self.symbol.as_deref()),
            false => role_of(&self.module, self.symbol.as_deref()),
        }
    }

    /// In the C library or the loader, whatever the function does.
    pub fn in_system_library(&self) -> bool {
        matches!(role_of_module(&self.module), Role::Libc | Role::Loader)
    }
}

/// What of a frame decides which one of a stack is the caller. Found out once for a frame that is in many stacks: it
/// takes comparisons with what all rules declare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    role: Role,
    is_named: bool,
    is_inlined: bool,
    /// A function that may be the caller: with a name, neither the system's nor where threads start.
    is_own: bool,
    /// A managed language's function that its user wrote.
    is_written: bool,
    /// Called on another stack than that of the program's code, which follows.
    switches: bool,
}

impl Judged {
    /// Of a frame that has its role.
    pub(super) fn of(frame: &Frame) -> Judged {
        let (role, is_named) = (frame.role, frame.symbol.is_some());
        let switches = || frame.symbol.as_deref().is_some_and(|name| on_behalf_of(name).is_some());
        Judged {
            role,
            is_named,
            is_inlined: frame.inlined,
            is_own: is_named && !matches!(role, Role::Wrapper | Role::Start) && !frame.in_system_library(),
            is_written: frame.managed && role == Role::Program,
            switches: role == Role::Runtime && switches(),
        }
    }
}

/// Which frame of a stack requested the memory. The names that the system call's wrapper has besides are no frames of
/// their own.
fn caller_of(all: &[Judged]) -> Option<u64> {
    let aliases = all.iter().take_while(|f| f.is_inlined).count();
    let aliases = if all.get(aliases).is_some_and(|f| f.role == Role::Wrapper) { aliases } else { 0 };
    caller(all.get(aliases..).unwrap_or(all)).map(|at| (aliases + at) as u64)
}

/// Where a runtime made the call, on another stack than that of the program's code: the first function on
/// that one which is not the runtime's.
fn behind_runtime(frames: &[Judged]) -> Option<usize> {
    frames.iter().find(|f| f.is_own).filter(|f| f.role == Role::Runtime)?;
    let switched = frames.iter().position(|f| f.switches)?;
    let beyond = frames.iter().skip(switched).position(|f| f.is_own && f.role == Role::Program)?;
    Some(switched + beyond)
}

/// The function that a reader would name: the first with a name outside of the allocator and the system's
/// libraries, or else whatever has a name.
fn caller(frames: &[Judged]) -> Option<usize> {
    // Where a managed language's functions are known, they are what its user wrote.
    if let Some(at) = frames.iter().position(|f| f.is_written) {
        return Some(at);
    }
    let behind_runtime = behind_runtime(frames);
    if behind_runtime.is_some() {
        return behind_runtime;
    }
    let outside = frames.iter().rposition(|f| f.role == Role::Allocator).map_or(0, |entry| entry + 1);
    let beyond = frames.iter().skip(outside).position(|f| f.is_own).map(|at| at + outside);
    beyond
        .or_else(|| frames.iter().position(|f| f.is_own))
        .or_else(|| frames.iter().position(|f| f.is_named))
        .or_else(|| (!frames.is_empty()).then_some(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    fn stack(names: &[(&str, &str)]) -> Stack {
        let frame = |&(module, name): &(&str, &str)| Frame {
            module: module.to_owned(),
            symbol: (!name.is_empty()).then(|| name.to_owned()),
            ..Frame::default()
        };
        Stack::new(names.iter().map(frame).collect(), "complete")
    }

    #[test]
    fn the_caller_is_outside_of_the_allocator_and_the_c_library() {
        let of = |names: &[(&str, &str)]| stack(names).caller;
        let (c, p) = ("libc.so.6", "prog");
        assert_eq!(of(&[(c, "mmap"), (c, "malloc"), (c, "fopen"), (p, ""), (p, "reader")]), Some(4));
        assert_eq!(of(&[(p, "__mmap"), (p, "grow"), (p, "main")]), Some(1));
        assert_eq!(of(&[(p, "arena_new"), (p, "malloc"), (c, "__libc_start_main"), (p, "_start")]), Some(0));
        assert_eq!(of(&[(c, ""), (c, "fopen")]), Some(1));
        let go = [
            "runtime.sysMmap.abi0",
            "runtime.systemstack.abi0",
            "runtime.mallocgc",
            "main.load",
            "main.main",
        ];
        assert_eq!(of(&go.map(|name| (p, name))), Some(3));
        let c_code = [(c, "mmap"), (p, "c_map"), (p, "runtime.asmcgocall.abi0"), (p, "main.main")];
        assert_eq!(of(&c_code), Some(1));
        assert_eq!((of(&[(c, "")]), of(&[])), (Some(0), None));
    }

    #[test]
    fn reports_of_earlier_versions_have_roles_once_they_are_read() {
        let report =
            Report { stacks: vec![stack(&[("libc.so.6", "mmap"), ("prog", "main")])], ..Report::default() };
        let json = serde_json::to_string(&report).expect("JSON");
        assert!(json.contains(r#""role":"wrapper""#) && json.contains(r#""caller":1"#), "{json}");
        let older = json.replace(r#","role":"wrapper""#, "").replace(r#","role":"program""#, "");
        let older = older.replace(r#","caller":1"#, "");
        assert!(!older.contains("role") && !older.contains(r#""caller""#), "{older}");
        assert_eq!(Report::from_json(older.as_bytes()).expect("a report"), report);
        let newer = json.replace("wrapper", "of a later version");
        assert_eq!(Report::from_json(newer.as_bytes()).expect("a report"), report);
    }
}
