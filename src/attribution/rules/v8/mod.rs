//! V8 (Node.js, Chromium, Deno): a code range of 512 MiB per isolate, heap pages of 256 KiB, the guards
//! of WebAssembly memories, Chromium's sandbox.

mod embedder;
mod generated;
mod layout;

use super::{Advice, Claim, Group, Placed, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Merge};
use crate::attribution::code::{Code, Role};
use crate::attribution::findings::Fix;
use crate::attribution::world::Surveyed;
use crate::ledger::Region;
use crate::model::stack::GeneratedFunction;
use crate::model::{Addr, Sign};

pub const V8: Category = Category(&CategoryInfo {
    id: "v8",
    color: 0x5f9a34,
    name: "V8",
    one: "V8 memory",
    many: "mappings of V8",
});

pub(super) const CODE_RANGE: &str = "code range";
pub(super) const BUILTINS: &str = "copy of the built-in functions";
pub(super) const HEAP: &str = "heap";
pub(super) const WASM: &str = "WebAssembly memory";
pub(super) const WASM_GUARD: &str = "WebAssembly memory, guard";
pub(super) const CAGE: &str = "sandbox and pointer cage";
const POINTERS: &str = "cage of compressed pointers";
pub(super) const CPPGC: &str = "cage of the heap of C++ objects";
pub(super) const RESERVED: &str = "reserved as a whole";
const TABLES: &str = "pointer tables";
const NAMED: &str = "reservation that V8 named";

/// Its own, the built-in ones as the linker and as a perf map name them, and how the code that it makes for itself is
/// called there.
const FUNCTIONS: &[&str] =
    &["v8::", "node::", "Builtins_", "Builtin:", "BytecodeHandler:", "RegExp:", "Stub:", "Wasm:"];

const ID: &str = "v8";
const MARK: &str = "v8";

/// What belongs into one finding.
pub(super) fn kind(part: &'static str) -> &'static str {
    match part {
        BUILTINS => CODE_RANGE,
        WASM_GUARD => WASM,
        other => other,
    }
}

pub struct V8Rule;

/// Stripped, or the embedder's way to memory (v8::PageAllocator).
fn maps_for_v8(line: &Line) -> bool {
    line.function.is_none() || ["PageAllocator", "partition_alloc"].iter().any(|word| line.mentions(word))
}

impl Rule for V8Rule {
    fn id(&self) -> &'static str {
        ID
    }

    fn categories(&self) -> &'static [Category] {
        &[V8]
    }

    fn code(&self) -> Code {
        Code { role: Role::Runtime, functions: FUNCTIONS, own_sources: &["node:"], ..Code::NONE }
    }

    fn generated_function(&self, entry: &str) -> Option<GeneratedFunction> {
        generated::function(entry)
    }

    /// The name of a group of trace events, which every V8 registers; and the program that embeds it.
    fn signs(&self) -> &'static [Sign] {
        const {
            let [chromium, deno, node] = embedder::SIGNS;
            &[Sign::new(MARK, &["disabled-by-default-v8.gc"]), chromium, deno, node]
        }
    }

    fn surroundings(&self) -> &'static [(&'static str, &'static [&'static str])] {
        const { &[("NODE_OPTIONS", &[V8.0.id]), ("DENO_V8_FLAGS", &[V8.0.id])] }
    }

    fn option_lists(&self) -> &'static [(&'static str, char)] {
        &[("NODE_OPTIONS", ' '), ("DENO_V8_FLAGS", ',')]
    }

    fn place(&self, option: &str, _started: &[String]) -> Option<Placed> {
        embedder::place(option)
    }

    fn survey(&self, world: &World<'_>) -> Vec<Surveyed> {
        layout::survey(world)
    }

    /// The copy of the built-in functions shows the program's own name. In Chromium it names what it
    /// reserves.
    fn by_name(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        if let Some(name) = subject.anon_name() {
            return by_own_name(name, world.surveyed(ID, subject.range.start));
        }
        let found = world.surveyed(ID, subject.range.start).filter(|_| subject.is_file())?;
        (found.claim.part == BUILTINS).then(|| Claim { evidence: Evidence::Name, ..found.claim.clone() })
    }

    fn knows(&self, line: &Line) -> bool {
        line.display
            .as_deref()
            .is_some_and(|f| f.starts_with("v8::base::") || f.starts_with("v8::internal::"))
    }

    fn by_stack(&self, subject: &Subject<'_>, world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path.filter(|_| subject.is_private_anonymous())?;
        // JavaScript runs inside of V8's functions: what an addon maps is the addon's
        let module = path.lines.get(at)?.module.as_str();
        if !path.is_direct(at, |line| line.module == module && maps_for_v8(line)) {
            return None;
        }
        let any = |words: &[&str]| path.any(|l| words.iter().any(|w| l.mentions(w)));
        let laid_out = world.surveyed(ID, subject.range.start);
        // both are cages to V8: the one of an isolate's code, and the one of a group's heap
        let (cage, of_group) = (any(&["VirtualMemoryCage"]), any(&["IsolateGroup", "PtrComprCage"]));
        let part = if any(&["CagedHeap"]) {
            CPPGC
        } else if any(&["ExternalEntityTable", "ExternalPointerTable"]) {
            TABLES
        } else if any(&["TrustedRange", "SegmentedTable"]) {
            // beside the sandbox: what JavaScript must not write to
            RESERVED
        } else if any(&["CodeRange"]) || (cage && !of_group) {
            CODE_RANGE
        } else if cage {
            POINTERS
        } else if any(&["Sandbox::Initialize", "IsolateGroup", "PtrComprCage"]) {
            CAGE
        } else if subject.call.is_some_and(|c| c.len >= 8 << 30) && any(&["BackingStore::", "WasmMemory"]) {
            if subject.is_reserved() { WASM_GUARD } else { WASM }
        } else {
            laid_out.map_or(HEAP, |found| found.claim.part)
        };
        let claim = Claim::new(V8, Evidence::Stack, part);
        Some(match laid_out.filter(|found| found.claim.part == part) {
            Some(found) => Claim { evidence: Evidence::Stack, ..found.claim.clone() },
            None if part == HEAP => claim.merge(Merge::ByCaller(at)),
            None => claim.merge(Merge::ByKind(kind(part))),
        })
    }

    fn by_shape(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        let found = world.surveyed(ID, subject.range.start)?;
        (subject.shape_may_decide() && subject.is_private_anonymous()).then(|| found.claim.clone())
    }

    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        world.survey_cuts(ID, region.range)
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        let guards = group.part(WASM_GUARD).virt + group.part(WASM).virt;
        let own = |part| (group.part(part).virt, part);
        let parts = [CODE_RANGE, CAGE, POINTERS, CPPGC, RESERVED, TABLES, NAMED];
        let largest = parts.into_iter().map(own).chain([(guards, WASM)]);
        let (bytes, what) = largest.max().unwrap_or_default();
        let advice = match what {
            _ if bytes == 0 => {
                return Advice::why("pages of the JavaScript heap, mapped with room to align them");
            }
            WASM => wasm(group),
            CAGE => {
                let mut advice = Advice::why(
                    "V8 keeps all that JavaScript can reach in one range, the sandbox (1 TiB and its guards), in \
                     which a page of 4 GiB holds the compressed pointers' heap; a bug can then not write \
                     elsewhere, and what is not used costs nothing",
                );
                advice.title = Some("V8 sandbox, reserved but not used".to_string());
                advice
            }
            POINTERS => {
                let mut advice = Advice::why(
                    "where V8 was built with pointers of four bytes, the JavaScript heap lies in one range of 4 GiB, which it \
                     reserves as a whole; what is not used costs nothing",
                );
                advice.title = Some("V8's cage of compressed pointers, reserved but not used".to_string());
                advice
            }
            TABLES => {
                let mut advice = Advice::why(
                    "where there is a sandbox, pointers that lead out of it are numbers in these tables, each of \
                     which reserves all that it may ever need; what is not used costs nothing",
                );
                advice.title = Some("V8's pointer tables, reserved but not used".to_string());
                advice
            }
            CPPGC => {
                let mut advice = Advice::why(
                    "V8 keeps C++ objects that JavaScript owns (cppgc) in one range of 16 GiB, so that what points \
                     from one to another takes four bytes; it costs nothing until used",
                );
                advice.title = Some("V8's heap of C++ objects, reserved but not used".to_string());
                advice
            }
            RESERVED => {
                let mut advice = Advice::why(
                    "V8 reserves all that a table or a heap may ever need, and opens it piece by piece; which of \
                     them it is nothing tells here; what is not used costs nothing",
                );
                advice.title = Some(match group.instances_with(RESERVED) {
                    1 => "reservation of V8's".to_string(),
                    n => format!("{n} reservations of V8's"),
                });
                advice
            }
            NAMED => {
                let mut advice = Advice::why(
                    "V8 reserves ranges as a whole for its heaps and for code, and the program named them after \
                     it (PR_SET_VMA); which heap is in it the name does not tell; what is not used costs nothing",
                );
                advice.title = Some("memory named \u{201c}v8\u{201d}".to_string());
                advice
            }
            _ => code_range(group, world),
        };
        advice
            .wont("--max-old-space-size", "limits the heap's objects; these reservations stay")
            .wont("UV_THREADPOOL_SIZE", "changes libuv's threads and their stacks, not V8's ranges")
    }
}

/// A name as V8 gives them, and what the layout of the process shows in addition.
fn by_own_name(name: &[u8], laid_out: Option<&Surveyed>) -> Option<Claim> {
    let part = match name {
        b"v8-sandbox" => CAGE,
        b"v8-pointer-table" => TABLES,
        b"v8" => NAMED,
        _ => return None,
    };
    let same = |found: &&Surveyed| part == NAMED || found.claim.part == part;
    Some(match laid_out.filter(same) {
        Some(found) => Claim { evidence: Evidence::Name, ..found.claim.clone() },
        None => Claim::new(V8, Evidence::Name, part).merge(Merge::ByKind(kind(part))),
    })
}

fn code_range(group: &Group<'_>, world: &World<'_>) -> Advice {
    let code = group.part(CODE_RANGE);
    let isolates = group.instances_with(CODE_RANGE);
    let mut advice = Advice::why(
        "V8 reserves 512 MiB per isolate (each worker has one) so that compiled code stays within reach of \
         short jumps; it costs nothing until used",
    )
    .fix(embedder::jitless(world, code.unused()));
    if isolates > 1 {
        advice = advice.fix(Fix::new("fewer workers", 0, 0).note("each has a code range of its own"));
    }
    advice.title = Some(match isolates {
        0 | 1 => "V8 code range, reserved but not used".to_string(),
        n => format!("{n} V8 code ranges, reserved but not used"),
    });
    advice
}

fn wasm(group: &Group<'_>) -> Advice {
    let memories = group.instances_with(WASM).max(1);
    let mut advice = Advice::why(
        "each WebAssembly memory reserves 10 GiB around itself, so that no access needs a check: one that goes \
         wrong hits a guard; guards cost nothing",
    )
    .fix(Fix::new("fewer WebAssembly.Memory objects", 0, 0).note("each reserves as much, however small it is"))
    .fix(
        Fix::new("--disable-wasm-trap-handler (Node.js)", group.part(WASM_GUARD).virt, 0)
            .note("checks each access instead of guarding it: slower"),
    )
    .wont("maximum of WebAssembly.Memory", "limits how far it grows, not what is reserved around it");
    advice.title = Some(match memories {
        1 => "V8: guards around a WebAssembly memory".to_string(),
        n => format!("V8: guards around {n} WebAssembly memories"),
    });
    advice
}
