//! A stack in one line.

use super::style::{clean, truncated};
use crate::report::model::{Frame, Role, Stack};
use std::sync::Arc;

/// `memset < zmalloc < … < main`: where in the program something was done.
pub(super) fn chain(stack: &Stack, width: usize) -> String {
    fitting(&own_frames(stack), width)
}

/// As [`chain`], from the function that the program called (`malloc`), or else from the caller of the
/// system call's wrapper, or the first of those that has a name.
pub(super) fn chain_of_caller(stack: &Stack, width: usize) -> String {
    let frames = own_frames(stack);
    if let Some(at) = frames.iter().position(|f| f.managed && f.role == Role::Program) {
        let mut picked = library_function(stack, &frames[..at]).map_or_else(Vec::new, |native| vec![native]);
        picked.extend(&frames[at..]);
        return fitting(&picked, width);
    }
    let entry = frames.iter().rposition(|f| f.role == Role::Allocator);
    if let Some(entry) = entry.filter(|at| at + 1 < frames.len()) {
        let unnamed = frames.get(entry).is_some_and(|f| f.symbol.is_none());
        return fitting(&frames[entry + usize::from(unnamed)..], width);
    }
    let from = |f: &&Frame| !f.in_system_library();
    let named = frames.iter().position(|f| from(f) && f.symbol.is_some());
    let first = named.or_else(|| frames.iter().position(from)).unwrap_or(0);
    let entered = |at: &usize| frames.get(*at).is_some_and(|f| f.symbol.is_some() && f.role != Role::Wrapper);
    let first = first.checked_sub(1).filter(entered).unwrap_or(first);
    fitting(&frames[first..], width)
}

/// The function of a native library that a managed language called and that asked for the memory: the innermost with a
/// name that is no allocator's, and not the interpreter's own.
fn library_function<'a>(stack: &Stack, inner: &[&'a Frame]) -> Option<&'a Frame> {
    let evaluates = |pair: &[Arc<Frame>]| match pair {
        [f, next] if f.managed && !next.managed => Some(next.module.clone()),
        _ => None,
    };
    let interpreters: Vec<String> = stack.frames.windows(2).filter_map(evaluates).collect();
    let of_allocator = inner.iter().any(|f| f.role == Role::Allocator);
    let is_native = |f: &&&Frame| {
        !f.managed && f.role == Role::Program && f.symbol.is_some() && !interpreters.contains(&f.module)
    };
    inner.iter().filter(|_| !of_allocator).find(is_native).copied()
}

/// Without what is below every program's own functions, and without a function's inlined parts
/// where the function itself follows.
fn own_frames(stack: &Stack) -> Vec<&Frame> {
    let is_managed = stack.frames.iter().any(|f| f.managed);
    let frames =
        if is_managed { stack.as_written().0 } else { stack.frames.iter().map(Arc::as_ref).collect() };
    let end = frames.iter().rposition(|f| f.role != Role::Start).map_or(frames.len(), |last| last + 1);
    let is_part = |f: &Frame, next: Option<&Frame>| {
        f.inlined && f.symbol.is_some() && next.is_some_and(|next| next.symbol == f.symbol)
    };
    let own = frames[..end].iter().enumerate();
    own.filter(|(at, f)| !is_part(f, frames.get(at + 1).copied())).map(|(_, f)| *f).collect()
}

/// Names from the inside out. Where not all of them fit, the innermost, those with a name next to it, and the
/// outermost; `…` replaces what is left out.
fn fitting(frames: &[&Frame], width: usize) -> String {
    if let Some(all) = whole(frames, width) {
        return all;
    }
    let Some(last) = frames.len().checked_sub(1) else { return String::new() };
    let mut picked = vec![0, last];
    picked.dedup();
    let named = |(_, frame): &(usize, &&Frame)| frame.symbol.is_some();
    for (index, _) in frames.iter().enumerate().take(last).skip(1).filter(named) {
        let mut more = picked.clone();
        more.insert(more.len() - 1, index);
        if joined(frames, &more).chars().count() > width {
            break;
        }
        picked = more;
    }
    truncated(&joined(frames, &picked), width)
}

/// All names, where they fit: of deep stacks most are not even made.
fn whole(frames: &[&Frame], width: usize) -> Option<String> {
    let mut text = String::new();
    let mut left = width;
    for (at, frame) in frames.iter().enumerate() {
        let (gap, name) = (if at == 0 { "" } else { " < " }, name(frame));
        left = left.checked_sub(gap.len() + name.chars().count())?;
        text += gap;
        text += &name;
    }
    Some(text)
}

/// The frames with these numbers, ascending.
fn joined(frames: &[&Frame], picked: &[usize]) -> String {
    let mut text = String::new();
    let mut next = 0;
    for &index in picked {
        text += match index {
            0 => "",
            _ if index == next => " < ",
            _ => " < … < ",
        };
        text += &frames.get(index).map(|f| name(f)).unwrap_or_default();
        next = index + 1;
    }
    text
}

fn name(frame: &Frame) -> String {
    let module = || truncated(&clean(&frame.module), 20);
    match (&frame.symbol, &frame.function_start) {
        (Some(symbol), _) if frame.managed && symbol.starts_with('<') => {
            truncated(&clean(&format!("{symbol}{}", place(frame))), 48)
        }
        (Some(symbol), _) => truncated(&clean(symbol), 36),
        (None, Some(start)) => format!("{} fn@{}", module(), clean(start)),
        (None, None) => format!("{} +{}", module(), clean(&frame.offset)),
    }
}

/// Where code is that its language gives no name (`<module>`, `<lambda>`): of the file's path as much as says which it is.
fn place(frame: &Frame) -> String {
    let Some(file) = &frame.file else { return String::new() };
    let parts: Vec<&str> = file.rsplit('/').take(2).collect();
    let file = match parts[..] {
        ["__init__.py", folder] => format!("{folder}/__init__.py"),
        [name, ..] => name.to_owned(),
        [] => String::new(),
    };
    frame.line.map_or_else(|| format!(" {file}"), |line| format!(" {file}:{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_without_a_name_has_its_place() {
        let frame = |symbol: &str, file: Option<&str>, line| Frame {
            module: "elsewhere".to_owned(),
            symbol: Some(symbol.to_owned()),
            file: file.map(str::to_owned),
            line,
            managed: true,
            ..Frame::default()
        };
        let named = |file, line| name(&frame("<module>", file, line));
        assert_eq!(named(Some("/srv/app/load.py"), Some(8)), "<module> load.py:8");
        assert_eq!(named(Some("/usr/lib/python3.11/json/__init__.py"), None), "<module> json/__init__.py");
        assert_eq!(named(Some("__init__.py"), Some(1)), "<module> __init__.py:1");
        assert_eq!(named(None, Some(1)), "<module>");
        assert_eq!(name(&frame("load", Some("/srv/app/load.py"), Some(8))), "load");
        let native = Frame { managed: false, ..frame("<T as U>::new", Some("u.rs"), Some(8)) };
        assert_eq!(name(&native), "<T as U>::new");
    }

    fn stack(names: &[&str]) -> Stack {
        let frame = |name: &&str| Frame {
            module: if name.starts_with("__") { "libc.so.6" } else { "prog" }.to_owned(),
            symbol: Some(name.trim_end_matches('*').to_owned()),
            inlined: name.ends_with('*'),
            ..Frame::default()
        };
        Stack::new(names.iter().map(frame).collect(), "complete")
    }

    #[test]
    fn from_the_inside_out_without_the_roots() {
        let stack = stack(&["__mmap", "grow*", "grow", "grow", "run", "main", "__libc_start_main", "_start"]);
        assert_eq!(chain(&stack, 80), "__mmap < grow < grow < run < main", "recursion stays");
        assert_eq!(chain_of_caller(&stack, 80), "grow < grow < run < main");
        assert_eq!(chain_of_caller(&stack, 20), "grow < … < main");
        let stack = self::stack(&["__mmap", "__sysmalloc", "__malloc", "run", "main"]);
        assert_eq!(chain_of_caller(&stack, 80), "__malloc < run < main");
        let stack = self::stack(&["__mmap", "os_pages_map", "je_malloc_default", "run", "main"]);
        assert_eq!(chain_of_caller(&stack, 80), "je_malloc_default < run < main");
    }

    /// Of a library that a script uses the function that reserved is what is wanted, and the script's line that led to it.
    #[test]
    fn a_librarys_function_comes_before_the_scripts() {
        let mut stack = stack(&["__mmap", "reserve", "evaluate", "load", "evaluate", "main"]);
        for (frame, module) in stack.frames.iter_mut().zip(["libc.so.6", "libfoo.so", "interpreter", "a.py"])
        {
            let managed = module == "a.py";
            *frame = Arc::new(Frame { module: module.to_owned(), managed, ..Frame::clone(frame) });
        }
        for frame in stack.frames.iter_mut().skip(4) {
            *frame = Arc::new(Frame { module: "interpreter".to_owned(), ..Frame::clone(frame) });
        }
        assert_eq!(chain_of_caller(&stack, 80), "reserve < load");
    }
}
