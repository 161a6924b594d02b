//! From the descriptions of allocators to what is probed in a file.

use crate::capture::heap::{Action, ProbeFunction, Where};
use crate::heap::describe::{Description, FunctionKind, Size, Value, ValueSource};
use crate::model::{Binding, Probe, Skip};
use crate::objects::Object;
use crate::objects::functions::{Function, FunctionTable};
use crate::objects::variables::variable;
use std::collections::{HashMap, HashSet};

/// A function that is to be probed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbedFunction {
    /// In the file.
    pub offset: u64,
    /// As the description spells it.
    pub symbol: String,
    /// The description's name.
    pub allocator: String,
    pub function: ProbeFunction,
}

/// What a file has of some allocators' functions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resolved {
    /// Each address once, by offset.
    pub found: Vec<ProbedFunction>,
    /// Functions that are there and not probed, and why.
    pub left_out: Vec<(String, Why)>,
}

/// Why a function that a description names is not probed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// What it calls is probed. Besides being of no use, a return probe is in the way of what
    /// `operator new` throws: C++ finds no way past a return address that the kernel has replaced.
    CallsOne,
    /// The variable with the context is not in the symbol table.
    NoVariable(String),
    /// The reason of the symbol table.
    Skipped(&'static str),
}

/// Functions of a file that descriptions name.
pub fn resolve(object: &Object, base_name: &str, descriptions: &[Description]) -> Resolved {
    let mut out = Resolved::default();
    let selected: Vec<&Description> = descriptions.iter().filter(|each| each.searches(base_name)).collect();
    if selected.is_empty() || object.raw_fd().is_none() {
        return out;
    }
    let table = FunctionTable::read(object, Default::default());
    let mut by_offset: HashMap<u64, ProbedFunction> = HashMap::new();
    for description in selected {
        for described in &description.functions {
            for function in table.by_name(described.symbol.as_bytes()) {
                let target = match target(&table, function) {
                    Ok(target) => target,
                    Err(Some(why)) => {
                        out.left_out.push((described.symbol.clone(), why));
                        continue;
                    }
                    Err(None) => continue,
                };
                let Some(offset) = target.offset else { continue };
                match probe_of(object, target, &described.kind) {
                    Ok(function) => {
                        by_offset.entry(offset).or_insert_with(|| ProbedFunction {
                            offset,
                            symbol: described.symbol.clone(),
                            allocator: description.name.clone(),
                            function: ProbeFunction { bracket: !description.objects.is_empty(), ..function },
                        });
                    }
                    Err(why) => out.left_out.push((described.symbol.clone(), why)),
                }
            }
        }
    }
    // operator new[] calls operator new, which calls malloc.
    let mut passed_on: HashSet<u64> = HashSet::new();
    loop {
        let forwarding = Forwarding { object, table: &table, by_offset: &by_offset, passed_on: &passed_on };
        let more: Vec<u64> =
            by_offset.values().filter(|f| forwarding.forwards(f)).map(|f| f.offset).collect();
        if more.is_empty() {
            break;
        }
        for offset in more {
            passed_on.insert(offset);
            out.left_out.extend(by_offset.remove(&offset).map(|found| (found.symbol, Why::CallsOne)));
        }
    }
    out.found = by_offset.into_values().collect();
    out.found.sort_by_key(|found| found.offset);
    out
}

/// The function whose first instruction is probed; nothing to report where it is another file's.
fn target<'t>(table: &'t FunctionTable, function: &'t Function) -> Result<&'t Function, Option<Why>> {
    // A function of the same name that only its own source file sees is another one.
    if function.binding == Binding::Local && imports(table, table.name(function)) {
        return Err(None);
    }
    match function.probe {
        Probe::No(Skip::Imported) => Err(None),
        Probe::No(skip) => table.probed(function).ok_or(Some(Why::Skipped(skip.id()))),
        Probe::Yes => Ok(function),
    }
}

fn imports(table: &FunctionTable, name: &[u8]) -> bool {
    table.by_name(name).any(|function| matches!(function.probe, Probe::No(Skip::Imported)))
}

fn probe_of(object: &Object, target: &Function, kind: &FunctionKind) -> Result<ProbeFunction, Why> {
    let mut out = Build { object, svma: target.svma, function: ProbeFunction::new(Action::Allocate) };
    match kind {
        FunctionKind::Allocate { size, pointer, context } => {
            out.size(size)?;
            out.function.result = out.place(pointer)?;
            out.function.context = out.optional(context.as_ref())?;
        }
        FunctionKind::Free { pointer } => {
            out.function.action = Action::Free;
            out.function.pointer = out.value(pointer)?;
        }
        FunctionKind::Resize { old, size, pointer, context } => {
            out.function.action = Action::Resize;
            out.function.pointer = out.value(old)?;
            out.size(size)?;
            out.function.result = out.place(pointer)?;
            out.function.context = out.optional(context.as_ref())?;
        }
        FunctionKind::CreateContext { context, parent, name } => {
            out.function.action = Action::CreateContext;
            out.function.result = out.place(context)?;
            out.function.parent = out.optional(parent.as_ref())?;
            out.function.name = out.optional(name.as_ref())?;
        }
        FunctionKind::ResetContext { context, covers } | FunctionKind::DeleteContext { context, covers } => {
            let resets = matches!(kind, FunctionKind::ResetContext { .. });
            out.function.action = if resets { Action::ResetContext } else { Action::DeleteContext };
            out.function.context = out.value(context)?;
            out.function.covers = *covers;
        }
        FunctionKind::MoveContext { context, parent } => {
            out.function.action = Action::MoveContext;
            out.function.context = out.value(context)?;
            out.function.parent = out.value(parent)?;
        }
    }
    Ok(out.function)
}

/// Puts one together.
struct Build<'a> {
    object: &'a Object,
    svma: u64,
    function: ProbeFunction,
}

impl Build<'_> {
    fn value(&mut self, value: &Value) -> Result<Where, Why> {
        match value {
            Value::Argument(n) => Ok(Where::Argument(*n)),
            Value::Global(name) => {
                let at = variable(self.object, name.as_bytes());
                let at = at.ok_or_else(|| Why::NoVariable(name.clone()))?;
                self.function.global = at.wrapping_sub(self.svma) as i64;
                Ok(Where::Global)
            }
        }
    }

    fn optional(&mut self, value: Option<&Value>) -> Result<Where, Why> {
        value.map_or(Ok(Where::Nowhere), |value| self.value(value))
    }

    fn place(&mut self, place: &ValueSource) -> Result<Where, Why> {
        match place {
            ValueSource::Entry(value) => self.value(value),
            ValueSource::Returned => Ok(Where::Returned),
            ValueSource::Pointee(n) => Ok(Where::Pointee(*n)),
        }
    }

    fn size(&mut self, size: &Size) -> Result<(), Why> {
        match size {
            Size::One(place) => self.function.size = self.place(place)?,
            Size::Product(a, b) => {
                self.function.size = Where::Argument(*a);
                self.function.factor = *b;
            }
        }
        Ok(())
    }
}

/// Which of C++'s functions only pass on to C's.
struct Forwarding<'a> {
    object: &'a Object,
    table: &'a FunctionTable,
    by_offset: &'a HashMap<u64, ProbedFunction>,
    /// Those that were found to.
    passed_on: &'a HashSet<u64>,
}

impl Forwarding<'_> {
    fn forwards(&self, found: &ProbedFunction) -> bool {
        if found.allocator != CXX {
            return false;
        }
        let c = if found.function.action == Action::Free { &b"free"[..] } else { b"malloc" };
        let own = self.table.by_name(c).any(|function| function.offset.is_some());
        !own && imports(self.table, c) || self.calls_one(found.offset)
    }

    /// A call or jump to a function that is probed: `e8` or `e9` and the distance from behind it. Four bytes
    /// that happen to equal one do not occur in functions of this size.
    fn calls_one(&self, offset: u64) -> bool {
        const LONGEST: u64 = 512;
        let at = |function: &&Function| function.offset == Some(offset);
        let size = self.table.functions().iter().find(at).map_or(0, |function| function.size.min(LONGEST));
        let Ok(code) = self.object.read(offset, size) else { return false };
        code.windows(5).enumerate().any(|(index, bytes)| {
            let [0xe8 | 0xe9, distance @ ..] = bytes else { return false };
            let Ok(distance) = distance.try_into() else { return false };
            let target =
                (offset + index as u64 + 5).wrapping_add_signed(i64::from(i32::from_le_bytes(distance)));
            let is_probed = self.by_offset.get(&target).is_some_and(|other| other.allocator != CXX);
            target != offset && (is_probed || self.passed_on.contains(&target))
        })
    }
}

const CXX: &str = "cxx";
