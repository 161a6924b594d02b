//! The program that embeds V8: a flag of V8 is spelled as the embedder accepts it.

use super::MARK;
use crate::attribution::findings::Fix;
use crate::attribution::rules::{Placed, World};
use crate::model::Sign;

const CHROMIUM: &str = "v8-in-chromium";
const DENO: &str = "v8-in-deno";
const NODE: &str = "v8-in-node";

/// Names of options and a message of theirs. Electron has Chromium's and Node's: its command line is Chromium's.
pub(super) const SIGNS: [Sign; 3] = [
    Sign::new(CHROMIUM, &["v8-cache-options"]),
    Sign { variables: &["DENO_V8_FLAGS"], ..Sign::new(DENO, &["DENO_V8_FLAGS"]) },
    Sign { variables: &["NODE_OPTIONS"], ..Sign::new(NODE, &[" is not allowed in NODE_OPTIONS"]) },
];

/// How each takes `--jitless`: measured with Chromium 156 (536 MiB of VIRT less), Deno 2 (512) and Node.js 20 (512).
const SPELLINGS: [(&str, &str); 3] =
    [(CHROMIUM, "--js-flags=--jitless"), (DENO, "DENO_V8_FLAGS=--jitless"), (NODE, "--jitless")];

/// The fix as this process' embedder takes it. One that is not known gets no promise.
pub(super) fn jitless(world: &World<'_>, saves: u64) -> Fix {
    let of_v8 = |mark: &str| {
        let mut files = world.marked(MARK);
        files.any(|file| file.marks.iter().any(|own| own == mark))
    };
    let (knob, saves) = match SPELLINGS.iter().find(|(mark, _)| of_v8(mark)) {
        Some((_, spelling)) => (*spelling, saves),
        None => ("V8's flag --jitless, if the program lets it be given", 0),
    };
    Fix::new(knob, saves, 0)
        .note("no compiled code at all: JavaScript runs many times slower, WebAssembly not at all")
}

pub(super) fn place(option: &str) -> Option<Placed> {
    match option {
        "--jitless" => Some(Placed::Variable { name: "NODE_OPTIONS", value: option.to_owned() }),
        "--js-flags=--jitless" => Some(Placed::Argument),
        _ => None,
    }
}
