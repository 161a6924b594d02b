//! Which functions of an allocator do what, and where their arguments are.

mod builtin;
mod parse;
mod value;

pub use crate::model::Covers;
pub use builtin::{DEFAULT_ALLOCATORS, built_in, built_in_names};
pub use parse::parse;
pub use value::{Size, Value, ValueSource};

/// An allocator. Read from a file by [`parse`], or [`built_in`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// What `--allocator` calls it.
    pub name: String,
    /// One line for people; may be empty.
    pub summary: String,
    /// Patterns (`*` matches anything) of base names of the files in which to search for the functions;
    /// empty: in every file that is mapped executable.
    pub objects: Vec<String>,
    pub functions: Vec<FunctionDescription>,
    pub context_layout: ContextLayout,
}

impl Description {
    /// Whether to search for the functions in a file with this base name.
    pub fn searches(&self, base_name: &str) -> bool {
        self.objects.is_empty() || self.objects.iter().any(|pattern| matches(pattern, base_name))
    }

    /// The function with this name in a symbol table.
    pub fn function(&self, symbol: &str) -> Option<&FunctionDescription> {
        self.functions.iter().find(|f| f.symbol == symbol)
    }
}

/// One function. Not every program has all that a description names: a missing one is no error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionDescription {
    /// As in the symbol table, mangled, without a version.
    pub symbol: String,
    pub kind: FunctionKind,
}

/// What a call does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FunctionKind {
    /// Hands out a block; a null pointer means that it refused.
    Allocate {
        size: Size,
        pointer: ValueSource,
        context: Option<Value>,
    },
    /// Takes one back; null is ignored.
    Free {
        pointer: Value,
    },
    /// Makes one larger or smaller, perhaps at another address. `pointer` null means that it failed
    /// and the block stays as it was, except for size 0. Without a `context` the block stays in its.
    Resize {
        old: Value,
        size: Size,
        pointer: ValueSource,
        context: Option<Value>,
    },
    /// `name` points to a string that ends with a zero byte.
    CreateContext {
        context: ValueSource,
        parent: Option<Value>,
        name: Option<Value>,
    },
    ResetContext {
        context: Value,
        covers: Covers,
    },
    DeleteContext {
        context: Value,
        covers: Covers,
    },
    /// `parent` null: it has none from now on.
    MoveContext {
        context: Value,
        parent: Value,
    },
}

/// Where a context's descriptor keeps what it was made with: bytes from its start, to read of contexts
/// that were made before vmaudit attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ContextLayout {
    /// A pointer to a string that ends with a zero byte.
    pub name_offset: Option<u32>,
    /// A pointer to the parent's descriptor; null for none.
    pub parent_offset: Option<u32>,
}

/// A pattern in which `*` matches any number of characters.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_file_names() {
        for (pattern, text, expected) in [
            ("postgres", "postgres", true),
            ("postgres", "postgres2", false),
            ("libc.so*", "libc.so.6", true),
            ("*", "", true),
            ("lib*malloc*.so*", "libtcmalloc_minimal.so.4", true),
            ("lib*malloc*.so", "libtcmalloc.so.4", false),
            ("a*a", "a", false),
            ("a**b", "ab", true),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
