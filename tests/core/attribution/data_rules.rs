//! Rules as data: what a file of them may say, what proves that one is meant, what it promises.

use crate::case::*;
use std::path::Path;
use vmaudit::attribution::{Attributed, DataRules, category_name, each_once, parse_rules};
use vmaudit::ledger::Origin;
use vmaudit::model::{Addr, AddrRange, FileMarks, VmOp};

/// A pool of a library, with a knob of each kind of promise.
const POOL: &str = r#"
[[rule]]
id = "foo.pool"
what = "pool of libfoo"
many = "pools of libfoo"
why = "libfoo keeps a pool a thread"
source = "libfoo, pool.c"
proven = "a test"
functions = ["pool_init"]
names = ["foo pool*"]
modules = ["libfoo*"]
through = ["libhelper.so*"]
explains = ["glibc-mmapped"]

[[rule.knob]]
knob = "FOO_POOLS=1"
leaves = "1 of them"
resident = true

[[rule.knob]]
knob = "pools of 1 GiB"
leaves = "1 GiB"

[[rule.knob]]
knob = "FOO_LIMIT"

[[rule.no_help]]
knob = "FOO_DEBUG"
why = "it only prints"
"#;

fn with(case: &mut Case, text: &str) {
    case.rules = DataRules::of(parse_rules(text, "own.toml").expect("sound rules"));
}

fn mapped(case: &mut Case, at: u64, mib: u64, stack: &[&str]) {
    let stack = case.stack(stack);
    let origin = case.mmap(4000, mib * MIB, (RW, ANON), stack);
    case.vma((at, at + mib * MIB), "rw-p", "", Origin::Event(origin));
}

/// Ids of the rules that claimed the pieces, or explain their findings.
fn labels<'a>(case: &'a Case, found: &Attributed) -> Vec<Option<&'a str>> {
    found.pieces.iter().map(|p| Some(case.rules.get(p.label?)?.id.as_str())).collect()
}

#[test]
fn a_function_on_the_stack_proves_it_and_what_is_left_of_it_is_promised() {
    let mut case = Case::new();
    with(&mut case, POOL);
    for (at, function) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
        let (start, caller) = (0x7f00_0000_0000 + at * 0x1000_0000, format!("program!{function}"));
        let stack = ["libc.so.6!__mmap", "libhelper.so.1@0x95", "libfoo.so.2@0x30", "libfoo.so.2!pool_init"];
        mapped(&mut case, start, 64, &[&stack[..], &[caller.as_str()]].concat());
        case.resident(start, start + 4 * MIB);
    }
    let found = case.attribute();
    let [finding] = found.findings.as_slice() else { panic!("{:?}", found.findings) };
    assert_eq!((finding.category.id, finding.title.as_str()), ("app-mmap", "4 pools of libfoo"));
    assert_eq!(finding.rule.as_deref(), Some("foo.pool"));
    assert_eq!(
        finding.why,
        "libfoo keeps a pool a thread; reserved by libhelper.so.1, reached from libfoo.so.2, pool_init"
    );
    let fixes: Vec<_> =
        finding.fix.iter().map(|f| (f.knob.as_str(), f.saves_virt / MIB, f.saves_rss / MIB)).collect();
    assert_eq!(
        fixes,
        [("FOO_POOLS=1", 192, 12), ("FOO_LIMIT", 0, 0)],
        "1 GiB would leave all of it: that knob is no advice"
    );
    assert_eq!(finding.no_help[0].knob, "FOO_DEBUG");
    assert!(found.pieces.iter().all(|p| p.evidence.as_str() == "stack"));
}

#[test]
fn a_library_that_maps_for_one_purpose_needs_no_names() {
    let mut case = Case::new();
    let of_file =
        POOL.replace("functions = [\"pool_init\"]", "libraries = [\"libfoo.so*\"]\nreserved = false");
    with(&mut case, &of_file.replace("explains = [\"glibc-mmapped\"]\n", ""));
    let stacks: [&[&str]; 4] = [
        &["libc.so.6!__mmap", "libfoo.so.2@0x30", "libfoo.so.2@0x90", "program!main"],
        &["libc.so.6!__mmap", "libhelper.so.1@0x95", "libfoo.so.2@0x30", "program!main"],
        // another file's code made the call, for whatever it is for
        &["libc.so.6!__mmap", "libbar.so@0x12", "libfoo.so.2@0x30", "program!main"],
        &["libc.so.6!__mmap", "program!libfoo.so.2", "program!main"],
    ];
    for (at, stack) in stacks.iter().enumerate() {
        mapped(&mut case, 0x7f00_0000_0000 + at as u64 * 0x1000_0000, 64, stack);
    }
    let pool = Some("foo.pool");
    assert_eq!(labels(&case, &case.attribute()), [pool, pool, None, None]);
}

/// Buffers of OpenBLAS: two copies make one for each of two threads when they are loaded, or a thread makes its own; of a
/// caller's there are as many with one thread. numpy and scipy: 5, of which OPENBLAS_NUM_THREADS=1 left 3.
#[test]
fn with_fewer_threads_what_callers_had_made_stays() {
    let pool =
        POOL.replace("leaves = \"1 of them\"\nresident", "leaves = \"1 of them\"\nthreads = true\nresident");
    let mut case = Case::new();
    with(&mut case, &pool);
    let loaded =
        ["libc.so.6!__mmap", "libfoo.so.2!pool_init", "libfoo.so.2!load", "ld-linux-x86-64.so.2!call_init"];
    let other =
        ["libc.so.6!__mmap", "libfoo-b.so!pool_init", "libfoo-b.so!load", "ld-linux-x86-64.so.2!call_init"];
    let called = ["libc.so.6!__mmap", "libfoo.so.2!pool_init", "libfoo.so.2!solve", "program!main"];
    let stacks: [&[&str]; 5] = [&loaded, &loaded, &other, &other, &called];
    for (at, stack) in (0u64..).zip(stacks) {
        mapped(&mut case, 0x7f00_0000_0000 + at * 0x1000_0000, 64, stack);
    }
    let promised = |case: &Case| {
        case.attribute().findings[0].fix.first().map(|fix| (fix.knob.clone(), fix.saves_virt / MIB))
    };
    assert_eq!(promised(&case), Some(("FOO_POOLS=1".to_owned(), 128)));
    let mut case = Case::new();
    with(&mut case, &pool);
    let own = [
        "libc.so.6!__mmap",
        "libfoo.so.2!pool_init",
        "libfoo.so.2@0x40",
        "libc.so.6!start_thread",
        "libc.so.6!clone3",
    ];
    mapped(&mut case, 0x7f00_0000_0000, 64, &called);
    mapped(&mut case, 0x7f00_1000_0000, 64, &called);
    assert_eq!(promised(&case), Some(("FOO_LIMIT".to_owned(), 0)), "all of it stays");
    mapped(&mut case, 0x7f00_2000_0000, 64, &own);
    assert_eq!(promised(&case), Some(("FOO_POOLS=1".to_owned(), 64)));
}

/// GCL's heap: sbrk, called by a program without names. What malloc takes there is malloc's.
#[test]
fn a_heap_by_sbrk_is_the_librarys_where_its_own_code_asked_for_it() {
    let mut case = Case::new();
    let own = POOL.replace(r#"functions = ["pool_init"]"#, r#"libraries = ["lisp*"]"#);
    with(&mut case, &own.replace("modules = [\"libfoo*\"]\n", "").replace("names = [\"foo pool*\"]\n", ""));
    let base = 0x55d2_516a_8000;
    let brk = || VmOp::Brk { requested: Addr(0x1000), current: None };
    let own = case.stack(&["libc.so.6!brk", "libc.so.6!sbrk", "lisp@0x2afd8", "lisp@0xba216"]);
    let malloc =
        case.stack(&["libc.so.6!brk", "libc.so.6!sbrk", "libc.so.6@0x96042", "libc.so.6!malloc", "lisp@0x1"]);
    let (own, malloc) = (case.call(PID, brk(), Some(own)), case.call(PID, brk(), Some(malloc)));
    let split = base + 64 * MIB;
    let parts = [(base, split, Origin::Event(own)), (split, split + MIB, Origin::Event(malloc))];
    case.merged_vma("rw-p", "[heap]", &parts);
    let found = case.attribute();
    assert_eq!(labels(&case, &found), [Some("foo.pool"), None]);
    assert_eq!((virt(&found, "app-mmap"), virt(&found, "glibc-main-heap")), (64 * MIB, MIB));
}

#[test]
fn resemblance_proves_nothing() {
    let mut case = Case::new();
    with(&mut case, POOL);
    let stacks: [&[&str]; 5] = [
        // the same name in another file
        &["libc.so.6!__mmap", "libbar.so!pool_init", "program!main"],
        // another function's name begins like it
        &["libc.so.6!__mmap", "libfoo.so.2!pool_init2", "program!main"],
        // a callback of the pool made the call
        &["libc.so.6!__mmap", "program!callback", "libfoo.so.2!pool_init", "program!main"],
        // no names
        &["libc.so.6!__mmap", "libfoo.so.2@0x30", "program!main"],
        &["libc.so.6!__mmap", "program!pool_init"],
    ];
    for (at, stack) in stacks.iter().enumerate() {
        mapped(&mut case, 0x7f00_0000_0000 + at as u64 * 0x1000_0000, 64, stack);
    }
    assert_eq!(labels(&case, &case.attribute()), [None; 5]);
}

#[test]
fn a_name_proves_it_where_there_is_no_stack_too() {
    let mut case = Case::new();
    with(&mut case, POOL);
    case.vma((0x1000_0000, 0x2000_0000), "rw-p", "[anon:foo pool 7]", Origin::Preexisting);
    case.vma((0x3000_0000, 0x4000_0000), "rw-p", "[anon:my foo pool]", Origin::Preexisting);
    let stack = case.stack(&["libc.so.6!__mmap", "program@0x30"]);
    let origin = case.mmap(4000, MIB, (RW, ANON), stack);
    // a kernel without names refuses it
    let named = AddrRange::new(0x5000_0000, 0x5010_0000);
    case.record(origin).anon_names.set(named, Some(&b"foo pool"[..].into()));
    case.vma((0x5000_0000, 0x5010_0000), "rw-p", "", Origin::Event(origin));
    let found = case.attribute();
    assert_eq!(labels(&case, &found), [Some("foo.pool"), None, Some("foo.pool")]);
    assert_eq!(found.pieces[0].evidence.as_str(), "name");
}

/// SBCL 2.2.9 in a snapshot: its addresses and its core's pages together prove its spaces.
#[test]
fn the_spaces_of_sbcl_begin_at_its_addresses_with_its_cores_pages() {
    let found = |marks: &[&str], core: &str| {
        let mut case = Case::new();
        let mut vma = |start: u64, end: u64, perms: &str, name: &str| {
            case.vma((start, end), perms, name, Origin::Preexisting);
        };
        vma(0x5000_0000, 0x5000_8000, "rwxp", core);
        vma(0x5000_8000, 0x5010_0000, "rwxp", "");
        vma(0x10_0000_0000, 0x10_0133_0000, "rwxp", core);
        vma(0x10_0133_0000, 0x10_4000_0000, "rwxp", "");
        vma(0x10_5000_0000, 0x10_6000_0000, "rwxp", "");
        vma(0x55e1_070d_5000, 0x55e1_0711_2000, "r-xp", "/usr/bin/sbcl");
        let file = case.observations.mappings.last().and_then(|m| m.file).expect("a file");
        let marks = marks.iter().map(|mark| (*mark).to_owned()).collect();
        case.observations.code.files.push(FileMarks { file, marks, setting: None, version: None });
        let all = case.attribute();
        let of = |id: &str| {
            let own = all.findings.iter().filter(|finding| finding.rule.as_deref() == Some(id));
            own.map(|finding| finding.footprint.virt >> 10).sum::<u64>()
        };
        (of("sbcl.dynamic-space"), of("sbcl.immobile-space"))
    };
    let core = "/usr/lib/sbcl/sbcl.core";
    assert_eq!(found(&["sbcl"], core), (0x3ecd_0000 >> 10, 0xf_8000 >> 10));
    assert_eq!(found(&[], core), (0, 0), "no SBCL");
    assert_eq!(found(&["sbcl"], ""), (0, 0), "no core");
}

#[test]
fn an_allocator_that_the_function_called_keeps_its_memory_and_the_rule_explains_it() {
    let mut case = Case::new();
    with(&mut case, POOL);
    let stack =
        ["libc.so.6!__mmap", "libc.so.6@0x10", "libc.so.6!malloc", "libfoo.so.2!pool_init", "program!main"];
    mapped(&mut case, 0x7f00_0000_0000, 64, &stack);
    let found = case.attribute();
    let [finding] = found.findings.as_slice() else { panic!("{:?}", found.findings) };
    assert_eq!((finding.category.id, finding.rule.as_deref()), ("glibc-mmapped", Some("foo.pool")));
    assert_eq!(finding.title, "pool of libfoo");
    assert!(finding.why.starts_with("libfoo keeps a pool a thread; "), "{}", finding.why);
    assert_eq!(labels(&case, &found), [None], "it is malloc's all the same");
}

#[test]
fn conditions_narrow_down_what_is_proven() {
    let conditions = [
        ("reserved = true", false),
        ("shared = true", false),
        ("callers = [\"libother*\"]", false),
        ("least = \"65 MiB\"", false),
        ("most = \"63 MiB\"", false),
        ("programs = [\"another\"]", false),
        ("least = \"64 MiB\"\nmost = \"64 MiB\"\nshared = false\ncallers = [\"libfoo*\"]", true),
        ("programs = [\"libfoo*\"]", true),
    ];
    for (condition, expected) in conditions {
        let mut case = Case::new();
        let text = POOL.replace("names =", &format!("{condition}\nnames ="));
        with(&mut case, &text);
        mapped(&mut case, 0x7f00_0000_0000, 64, &["libc.so.6!__mmap", "libfoo.so.2!pool_init"]);
        case.vma((0x1000_0000, 0x1000_1000), "r-xp", "/usr/lib/libfoo.so.2", Origin::Preexisting);
        let found = case.attribute();
        let claimed = labels(&case, &found).contains(&Some("foo.pool"));
        assert_eq!(claimed, expected, "{condition}");
    }
}

#[test]
fn what_is_not_proven_promises_nothing() {
    let mut case = Case::new();
    with(&mut case, &POOL.replace("proven = \"a test\"", "proven = false"));
    mapped(&mut case, 0x7f00_0000_0000, 2048, &["libc.so.6!__mmap", "libfoo.so.2!pool_init"]);
    let found = case.attribute();
    let fixes = &found.findings[0].fix;
    assert!(fixes.iter().all(|fix| (fix.saves_virt, fix.saves_rss) == (0, 0)), "{fixes:?}");
    assert!(fixes.iter().all(|fix| fix.note.ends_with("not proven")), "{fixes:?}");
}

#[test]
fn without_a_rule_the_library_and_the_function_are_named() {
    for (stack, expected) in [
        (&["libc.so.6!__mmap", "libfoo.so.2!pool_init", "program!main"][..], "libfoo.so.2, pool_init"),
        (
            &["libc.so.6!__mmap", "libfoo.so.2@0x10", "libfoo.so.2!foo_open"],
            "libfoo.so.2, a function called by foo_open",
        ),
        (&["libc.so.6!__mmap", "libfoo.so.2@0x10", "program!main"], "libfoo.so.2, called by program, main"),
        // others lie between
        (
            &["libc.so.6!__mmap", "libfoo.so.2@0x10", "libfoo.so.2@0x90", "libfoo.so.2!foo_open"],
            "libfoo.so.2, a function reached from foo_open",
        ),
        (
            &["libc.so.6!__mmap", "libfoo.so.2@0x10", "program@0x90", "program!main"],
            "libfoo.so.2, reached from program, main",
        ),
        // where every thread and every program begins
        (
            &["libc.so.6!__mmap", "libfoo.so.2@0x10", "libc.so.6!start_thread"],
            "libfoo.so.2, a function without a name",
        ),
        (&["libc.so.6!__mmap", "libfoo.so.2@0x10", "program@0x10"], "libfoo.so.2, a function without a name"),
    ] {
        let mut case = Case::new();
        mapped(&mut case, 0x7f00_0000_0000, 64, stack);
        let found = case.attribute();
        let finding = &found.findings[0];
        assert!(finding.why.starts_with(&format!("reserved by {expected}; ")), "{}", finding.why);
        // a caller without a name gets no advice
        let named = stack[1].contains('!');
        let advice = named.then(|| format!("ask for less in {expected}"));
        assert_eq!(finding.fix.first().map(|fix| &fix.knob), advice.as_ref());
    }
}

#[test]
fn what_is_wrong_in_a_file_is_reported_with_its_line_and_what_is_allowed() {
    let cases = [
        ("id = \"foo.pool\"", "id = \"Foo\"", 3, "allowed is GROUP.NAME"),
        ("proven = \"a test\"", "proven = true", 8, "allowed are false, and the program"),
        ("leaves = \"1 GiB\"", "leaves = \"some\"", 22, "\"N of them\""),
        ("functions = [\"pool_init\"]", "functions = [\"*\"]", 9, "3 other"),
        ("functions = [\"pool_init\"]", "", 11, "modules has no meaning without functions or libraries"),
        ("why = \"libfoo", "why = \"\\u001b[31mlibfoo", 6, "without control characters"),
        ("why = \"libfoo", "whi = \"libfoo", 6, "unknown field `whi`"),
        ("source = \"libfoo, pool.c\"", "", 2, "missing field `source`"),
        ("knob = \"FOO_LIMIT\"", "knob = \"FOO_LIMIT\"\nresident = true", 25, "without leaves"),
        ("modules =", "least = \"64\"\nmodules =", 11, "as in \"64 MiB\""),
        ("[[rule.no_help]]", "[[rule.no_help]", 27, ""),
    ];
    for (from, to, line, says) in cases {
        let text = POOL.replacen(from, to, 1);
        assert_ne!(text, POOL, "{from}");
        let error = parse_rules(&text, "own.toml").expect_err(to);
        assert_eq!((error.file.as_str(), error.line), ("own.toml", line), "{to}: {error}");
        assert!(error.what.contains(says), "{to}: {error}");
    }
    let nothing = parse_rules("", "own.toml").expect_err("no rule");
    assert!(nothing.to_string().starts_with("own.toml:1: no rule"), "{nothing}");
    let twice = parse_rules(&format!("{POOL}\n{POOL}"), "own.toml").expect_err("one id twice");
    assert!(twice.what.contains("that of the rule in line 2"), "{twice}");
    let unproven = POOL.replace("functions = [\"pool_init\"]\n", "").replace("names = [\"foo pool*\"]\n", "");
    let unproven = unproven.replace("modules = [\"libfoo*\"]\nthrough = [\"libhelper.so*\"]\n", "");
    let error = parse_rules(&unproven, "own.toml").expect_err("no proof");
    assert!(error.what.starts_with("no proof: functions, libraries, names or files are needed"), "{error}");
}

#[test]
fn a_users_rule_takes_the_place_of_a_built_in_one() {
    let built_in = DataRules::built_in();
    let id = &built_in.rules()[0].id;
    let own = parse_rules(&POOL.replace("foo.pool", id), "own.toml").expect("sound");
    let all = DataRules::with(own.clone());
    assert_eq!(all.rules().len(), built_in.rules().len());
    assert_eq!(all.rules()[0], own[0]);
    assert_eq!(all.rules().iter().filter(|rule| rule.id == *id).count(), 1);
    let twice = [own[0].clone(), own[0].clone()];
    assert!(each_once(&twice).expect_err("twice").what.contains("own.toml:2, too"));
}

#[test]
fn built_in_rules_name_categories_that_there_are_and_are_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect(name);
    let (rules, evidence, prove) =
        (read("docs/rules.md"), read("docs/evidence.md"), read("scripts/prove.py"));
    let all = DataRules::built_in().rules();
    assert!(all.len() > 20, "{}: are the files read?", all.len());
    for rule in all {
        for category in &rule.explains {
            assert!(category_name(category).is_some(), "{}: explains {category}", rule.id);
        }
        let row = |text: &str| text.lines().any(|line| line.starts_with(&format!("| `{}` |", rule.id)));
        assert!(row(&rules), "{} has no row in docs/rules.md", rule.id);
        assert!(row(&evidence), "{} has no row in docs/evidence.md", rule.id);
        let proven = prove.contains(&format!("Case(\"{}\",", rule.id));
        assert_eq!(proven, rule.proven.is_some(), "{}: scripts/prove.py runs what is proven", rule.id);
    }
}
