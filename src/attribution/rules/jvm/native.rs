//! The JVM's record of its own native memory (Native Memory Tracking), as `jcmd PID VM.native_memory summary`
//! prints it. It is queried by the protocol of jcmd (src/hotspot/os/posix/attachListener_posix.cpp, JDK 17 to
//! 25).

use super::code::structs::Structs;
use crate::attribution::rules::peek::Peek;
use crate::model::Addr;
use crate::model::arenas::ReadMemory;
use crate::model::heap::runtime::{BudgetQuery, Door, OwnBudget, OwnPart, Unreadable};

/// Entries of the table of flags that are read.
const MOST_FLAGS: u64 = 10_000;

pub(super) const QUERY: BudgetQuery = BudgetQuery {
    mark: "gHotSpotVMStructs",
    find,
    what: "the JVM's own record of its native memory (Native Memory Tracking), as it answered jcmd's request \
           VM.native_memory summary; vmaudit measured none of it",
    parse,
};

/// Version of the protocol, the command, its argument, and two that are empty.
const REQUEST: &[u8] = b"1\0jcmd\0VM.native_memory summary scale=B\0\0\0";

/// A JVM that cannot answer is not queried: its flags are read from its memory.
fn find(
    variable: &mut dyn FnMut(&str) -> Option<Addr>,
    memory: &mut ReadMemory<'_>,
) -> Option<Result<Door, Unreadable>> {
    let mut peek = Peek::new(memory);
    variable(QUERY.mark)?;
    let Some(structs) = Structs::read(variable, &mut peek) else {
        let unread = "its description of its own structures could not be read, so nothing is asked";
        return Some(Err(Unreadable { runtime: "JVM".to_owned(), why: unread.to_owned() }));
    };
    let version = structs.field("Abstract_VM_Version", "_vm_major_version").and_then(|at| peek.u32(at));
    let runtime = version.map_or_else(|| "JVM".to_owned(), |version| format!("JVM {version}"));
    let flags = Flags::read(&structs, &mut peek);
    // With -Xrs it listens from its start, and does not catch the signal.
    let signals = flags.as_ref().is_some_and(|flags| flags.no_signals == Some(false));
    let refused = match flags {
        None => Some("its flags could not be read, so nothing is asked"),
        Some(flags) => flags.refusal(),
    };
    Some(match refused {
        Some(why) => Err(Unreadable { runtime, why: why.to_owned() }),
        None => Ok(Door { runtime, signals, trigger: ".attach_pid", socket: ".java_pid", request: REQUEST }),
    })
}

/// What the JVM's table of its flags says; None for what could not be read.
#[derive(Default)]
struct Flags {
    /// NativeMemoryTracking.
    tracking: Option<String>,
    /// DisableAttachMechanism.
    no_attach: Option<bool>,
    /// ReduceSignalUsage.
    no_signals: Option<bool>,
}

impl Flags {
    /// In one pass: there are some thousand, and each name is a read.
    fn read(structs: &Structs, peek: &mut Peek<'_, '_>) -> Option<Flags> {
        let field = |field: &str| structs.field("JVMFlag", field);
        let first = peek.u64(field("flags")?)?;
        let count = peek.u64(field("numFlags")?)?.min(MOST_FLAGS);
        let (size, name, address) = (structs.size("JVMFlag")?, field("_name")?, field("_addr")?);
        let mut flags = Flags::default();
        for entry in (0..count).filter_map(|n| first.checked_add(n.checked_mul(size)?)) {
            // What could not be read so far stays unknown.
            if flags.take(entry, (name, address), peek).is_none() {
                break;
            }
        }
        Some(flags)
    }

    fn take(&mut self, entry: u64, (name, address): (u64, u64), peek: &mut Peek<'_, '_>) -> Option<()> {
        let name = peek.u64(entry.checked_add(name)?)?;
        if name == 0 {
            return Some(());
        }
        let name = peek.string(name)?;
        let value = |peek: &mut Peek<'_, '_>| peek.u64(entry.checked_add(address)?);
        let is_set = |peek: &mut Peek<'_, '_>| value(peek).and_then(|at| peek.u8(at)).map(|byte| byte != 0);
        match name.as_str() {
            "NativeMemoryTracking" => {
                let text = value(peek).and_then(|at| peek.u64(at));
                self.tracking = text.and_then(|at| peek.string(at));
            }
            "DisableAttachMechanism" => self.no_attach = is_set(peek),
            "ReduceSignalUsage" => self.no_signals = is_set(peek),
            _ => {}
        }
        Some(())
    }

    fn refusal(&self) -> Option<&'static str> {
        match (self.tracking.as_deref(), self.no_attach, self.no_signals) {
            (Some("off"), ..) => Some(
                "it keeps no record of its native memory: start it with -XX:NativeMemoryTracking=summary (or detail), \
                 which cannot be switched on later, and costs some speed, and memory for each of its mallocs",
            ),
            (Some(_), Some(true), _) => {
                Some("it was started with -XX:+DisableAttachMechanism: it answers nobody, and is not asked")
            }
            (Some(_), Some(false), Some(_)) => None,
            _ => Some("a flag of it could not be read, so nothing is asked"),
        }
    }
}

/// `Total: reserved=N, committed=N`, and parts: `-      Java Heap (reserved=N, committed=N)` with more in lines below.
fn parse(answer: &str) -> Result<OwnBudget, String> {
    let number = |text: &str, key: &str| {
        let digits = text.split_once(key)?.1;
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse::<u64>().ok()
    };
    let both = |text: &str| Some((number(text, "reserved=")?, number(text, "committed=")?));
    let mut budget: Option<OwnBudget> = None;
    for line in answer.lines() {
        if let Some(total) = line.strip_prefix("Total:") {
            let (reserved, committed) = both(total).ok_or("its sums could not be read")?;
            budget = Some(OwnBudget { reserved, committed, parts: Vec::new() });
            continue;
        }
        let Some(budget) = &mut budget else { continue };
        if let Some((name, figures)) = line.strip_prefix('-').and_then(|part| part.split_once('(')) {
            let (reserved, committed) = both(figures).ok_or("a category could not be read")?;
            let name = name.trim().to_owned();
            budget.parts.push(OwnPart { name, reserved, committed, malloc: 0 });
        } else if let Some(malloc) = number(line, "(malloc=")
            && let Some(part) = budget.parts.last_mut()
        {
            part.malloc = malloc;
        }
    }
    match budget {
        Some(budget) if !budget.parts.is_empty() => Ok(budget),
        _ => {
            let first = answer.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
            Err(format!("it answered: {}", first.trim()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_apart() {
        let answer = "\nNative Memory Tracking:\n\nTotal: reserved=8027, committed=484\n       malloc: 72 #38\n\n\
            -                 Java Heap (reserved=6320, committed=406)\n                            (mmap: reserved=6320, \
            committed=406) \n \n-                    Thread (reserved=199, committed=85)\n                            \
            (thread #19)\n                            (malloc=30 #118) (peak=39112 #122) \n";
        let budget = parse(answer).expect("an answer");
        assert_eq!((budget.reserved, budget.committed), (8027, 484));
        let parts: Vec<_> =
            budget.parts.iter().map(|p| (p.name.as_str(), p.reserved, p.committed, p.malloc)).collect();
        assert_eq!(parts, [("Java Heap", 6320, 406, 0), ("Thread", 199, 85, 30)]);
        assert_eq!(
            parse("Native memory tracking is not enabled\n").unwrap_err(),
            "it answered: Native memory tracking is not enabled"
        );
        assert!(parse("").is_err());
        assert!(parse("Total: reserved=x\n").is_err());
    }
}
