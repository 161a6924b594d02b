//! Descriptions of allocators: what a file may say, and what is said about one that is wrong.

use vmaudit::heap::describe::{Covers, Size, Value, ValueSource, built_in, parse};
use vmaudit::heap::{Description, FunctionKind};

const POOL: &str = r#"
name = "pool"
summary = "a pool allocator"
objects = ["server", "libpool.so*"]

[[function]]
symbols = ["pool_alloc", "_ZN4pool5allocEm"]
does = "allocate"
context = "arg1"
size = ["arg2", "arg3"]

[[function]]
symbols = ["pool_align"]
does = "allocate"
pointer = "*arg1"
size = "arg2"
context = "global current_pool"

[[function]]
symbols = ["pool_grow"]
does = "resize"
old = "arg2"
size = "return"
pointer = "arg2"

[[function]]
symbols = ["pool_free"]
does = "free"
pointer = "arg2"

[[function]]
symbols = ["pool_create"]
does = "create-context"
parent = "arg1"
name = "arg2"

[[function]]
symbols = ["pool_clear"]
does = "reset-context"
context = "arg1"
covers = "descendants"

[[function]]
symbols = ["pool_destroy"]
does = "delete-context"
context = "arg1"
covers = "tree"

[[function]]
symbols = ["pool_adopt"]
does = "move-context"
context = "arg2"
parent = "arg1"

[context]
name_offset = 16
"#;

fn pool() -> Description {
    parse(POOL, "pool.toml").unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn everything_that_can_be_said() {
    let pool = pool();
    let kind = |symbol: &str| pool.function(symbol).unwrap_or_else(|| panic!("{symbol}")).kind.clone();
    let arg = Value::Argument;
    assert_eq!((pool.name.as_str(), pool.context_layout.name_offset), ("pool", Some(16)));
    assert_eq!(pool.functions.len(), 9);
    assert_eq!(
        kind("_ZN4pool5allocEm"),
        FunctionKind::Allocate {
            size: Size::Product(2, 3),
            pointer: ValueSource::Returned,
            context: Some(arg(1))
        }
    );
    assert_eq!(
        kind("pool_align"),
        FunctionKind::Allocate {
            size: Size::One(ValueSource::Entry(arg(2))),
            pointer: ValueSource::Pointee(1),
            context: Some(Value::Global("current_pool".to_owned())),
        }
    );
    assert_eq!(
        kind("pool_grow"),
        FunctionKind::Resize {
            old: arg(2),
            size: Size::One(ValueSource::Returned),
            pointer: ValueSource::Entry(arg(2)),
            context: None,
        }
    );
    assert_eq!(kind("pool_free"), FunctionKind::Free { pointer: arg(2) });
    assert_eq!(
        kind("pool_create"),
        FunctionKind::CreateContext {
            context: ValueSource::Returned,
            parent: Some(arg(1)),
            name: Some(arg(2))
        }
    );
    assert_eq!(
        kind("pool_clear"),
        FunctionKind::ResetContext { context: arg(1), covers: Covers::Descendants }
    );
    assert_eq!(kind("pool_destroy"), FunctionKind::DeleteContext { context: arg(1), covers: Covers::Tree });
    assert_eq!(kind("pool_adopt"), FunctionKind::MoveContext { context: arg(2), parent: arg(1) });
    assert!(pool.searches("libpool.so.3") && !pool.searches("libc.so.6"));
}

/// What a file with one thing changed is refused with: the line, and words of the reason.
#[test]
fn mistakes_are_reported_with_their_line_and_what_is_allowed() {
    let cases = [
        ("name = \"pool\"", "nam = \"pool\"", 2, "unknown field `nam`"),
        ("name = \"pool\"", "name = \"my pool\"", 2, "letters, digits"),
        ("name = \"pool\"", "name = 7", 2, "expected a string"),
        ("does = \"allocate\"\ncontext", "does = \"alloc\"\ncontext", 8, "`allocate`, `free`, `resize`"),
        ("size = [\"arg2\", \"arg3\"]", "size = [\"arg2\"]", 10, "two arguments to multiply"),
        ("size = [\"arg2\", \"arg3\"]", "size = 4", 10, "such as \"arg1\""),
        ("size = [\"arg2\", \"arg3\"]", "siz = \"arg2\"", 10, "unknown field `siz`"),
        ("size = [\"arg2\", \"arg3\"]", "", 6, "size is missing"),
        ("pointer = \"*arg1\"", "pointer = \"arg7\"", 15, "\"arg1\" to \"arg6\""),
        ("pointer = \"*arg1\"", "pointer = \"*arg0\"", 15, "\"*arg1\" to \"*arg6\""),
        ("context = \"global current_pool\"", "context = \"global \"", 17, "\"global NAME\""),
        ("context = \"global current_pool\"", "context = \"return\"", 17, "\"global NAME\""),
        ("old = \"arg2\"\n", "", 19, "needs old"),
        (
            "pointer = \"arg2\"\n\n[[function]]\nsymbols = [\"pool_create\"]",
            "[[function]]\nsymbols = [\"pool_create\"]",
            26,
            "needs pointer",
        ),
        ("does = \"free\"", "does = \"free\"\nsize = \"arg1\"", 29, "size has no meaning"),
        ("does = \"free\"", "does = \"free\"\ncovers = \"tree\"", 29, "covers has no meaning"),
        ("does = \"move-context\"", "does = \"move-context\"\nold = \"arg1\"", 52, "old has no meaning"),
        ("covers = \"descendants\"\n", "", 37, "\"itself\", \"descendants\" or \"tree\""),
        ("covers = \"tree\"", "covers = \"all\"", 47, "`itself`, `descendants`, `tree`"),
        ("symbols = [\"pool_free\"]", "symbols = [\"pool_alloc\"]", 27, "described twice, first in line 7"),
        ("symbols = [\"pool_free\"]", "symbols = []", 26, "at least one function"),
        ("symbols = [\"pool_free\"]", "symbols = [\"pool free\"]", 27, "no name of a symbol table"),
        ("objects = [\"server\", ", "objects = [\"/usr/bin/server\", ", 4, "without folders"),
        ("name_offset = 16", "name_offset = -1", 56, "expected u32"),
        ("name_offset = 16", "name_offset = ", 56, ""),
    ];
    for (from, to, line, reason) in cases {
        assert!(POOL.contains(from), "{from}");
        let text = POOL.replacen(from, to, 1);
        let error = parse(&text, "pool.toml").expect_err(to);
        assert_eq!(error.line, line, "{to}: {error}");
        assert!(error.what.contains(reason), "{to}: {error}");
        assert!(error.to_string().starts_with(&format!("pool.toml:{line}: ")), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let error =
        parse("name = \"x\"\n[[function]]\nsymbols = [\"f\"]\ndoes = \"free\"\npointer = \"arg1\"\n", "x")
            .unwrap_err();
    assert!(error.what.contains("no function allocates"), "{error}");
    for text in ["", "\0", "name", "[[[", "name = \"\u{202e}\"", &"[".repeat(10_000)] {
        assert!(parse(text, "x").is_err(), "{text:.20}");
    }
}

#[test]
fn the_functions_that_people_use_are_there() {
    for (allocator, symbols) in [
        (
            "libc",
            &["malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "memalign", "valloc"]
                [..],
        ),
        (
            "cxx",
            &["_Znwm", "_Znam", "_ZdlPv", "_ZdlPvm", "_ZdaPv", "_ZnwmSt11align_val_t", "_ZnamRKSt9nothrow_t"],
        ),
        ("jemalloc", &["je_malloc", "_rjem_malloc", "mallocx", "sdallocx", "rallocx", "xallocx", "je_free"]),
        ("tcmalloc", &["tc_malloc", "tc_new", "tc_deletearray_sized", "tc_posix_memalign"]),
        ("mimalloc", &["mi_malloc", "mi_heap_malloc", "mi_free", "mi_realloc", "mi_heap_destroy"]),
        ("musl", &["malloc", "free"]),
        (
            "postgres",
            &["palloc", "palloc0", "MemoryContextAlloc", "repalloc", "pfree", "MemoryContextDelete"],
        ),
    ] {
        let description = built_in(allocator).expect(allocator).unwrap_or_else(|error| panic!("{error}"));
        for symbol in symbols {
            assert!(description.function(symbol).is_some(), "{allocator}: {symbol}");
        }
    }
    let postgres = built_in("postgres").expect("built in").expect("readable");
    let context = Some(Value::Global("CurrentMemoryContext".to_owned()));
    let size = Size::One(ValueSource::Entry(Value::Argument(1)));
    let expected = FunctionKind::Allocate { size, pointer: ValueSource::Returned, context };
    assert_eq!(postgres.function("palloc0").map(|f| &f.kind), Some(&expected));
    assert!(postgres.searches("postgres") && !postgres.searches("libc.so.6"));
}
