//! How long a module with much debugging information takes:
//! `VMAUDIT_BIG=/path/to/elf cargo test --release --test capture symbolize::big -- --ignored --nocapture`.

use crate::support::skip_this;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use vmaudit::model::{Completeness, Frame, FrameKind, ModuleInfo, Stack, StackTable};
use vmaudit::objects::{FileCache, Object};
use vmaudit::symbolize::{Config, LineBudget, Symbolizer};

/// Prints times and asserts none: they depend on the machine, and on a file that has to be brought.
#[test]
#[ignore = "measures; run by hand with --release and VMAUDIT_BIG"]
fn time_with_and_without_lines() {
    let Ok(path) = std::env::var("VMAUDIT_BIG").map(PathBuf::from) else {
        skip_this("VMAUDIT_BIG names no file");
        return;
    };
    let file = std::fs::File::open(&path).unwrap();
    let meta = file.metadata().unwrap();
    let object = Object::from_file(file).unwrap();
    let text = object.layout().section(b".text").unwrap();
    let mut table = StackTable::default();
    let module = table.intern_module(ModuleInfo {
        path: path.to_string_lossy().as_bytes().to_vec(),
        major: libc::major(meta.dev()),
        minor: libc::minor(meta.dev()),
        inode: meta.ino(),
        build_id: object.build_id().map(str::to_owned),
    });
    for step in 0..500 {
        let address = text.offset + text.size / 500 * step;
        let frames = vec![Frame { module: Some(module), address, kind: FrameKind::ReturnAddress }];
        table.intern(&Stack { frames, completeness: Completeness::Complete });
    }
    let all = || (0..table.len() as u32).map(vmaudit::model::StackId);
    let budgets = [
        ("names only", None),
        ("3 s", Some(LineBudget { time: Duration::from_secs(3), size: 2 << 30 })),
        ("no limit", Some(LineBudget { time: Duration::from_secs(3600), size: u64::MAX })),
    ];
    for (what, lines) in budgets {
        let begun = Instant::now();
        let mut symbolizer = Symbolizer::new(Config { lines, ..Config::default() });
        let out = symbolizer.symbolize(&table, all(), &mut FileCache::default());
        let frames = || out.stacks.values().flatten();
        let (named, placed) = (
            frames().filter(|f| f.function.is_some()).count(),
            frames().filter(|f| f.location.is_some()).count(),
        );
        let notes = symbolizer.take_notes();
        println!("{what}: {:?}, {named} names, {placed} lines, {notes:?}", begun.elapsed());
    }
}
