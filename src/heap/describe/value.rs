//! Where a function's figures are: arguments, results, variables.

use std::fmt;
use std::str::FromStr;

/// Arguments that are passed in registers (System V x86-64; eight on AArch64, of which six are taken).
pub const MAX_ARGUMENT: u8 = 6;

/// Known when the function is entered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// From 1; of a C++ method, 1 is `this`.
    Argument(u8),
    /// The pointer-sized content of a variable of the same file, by its name in the symbol table.
    Global(String),
}

/// Where a pointer is, or a size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueSource {
    Entry(Value),
    /// What the function returns.
    Returned,
    /// What this argument points to when the function has returned 0, as posix_memalign's.
    Pointee(u8),
}

/// The number of requested bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Size {
    One(ValueSource),
    /// Of two arguments, as calloc's. The function refuses where it overflows.
    Product(u8, u8),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Argument(n) => write!(f, "arg{n}"),
            Value::Global(name) => write!(f, "global {name}"),
        }
    }
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueSource::Entry(value) => value.fmt(f),
            ValueSource::Returned => f.write_str("return"),
            ValueSource::Pointee(n) => write!(f, "*arg{n}"),
        }
    }
}

/// What a value may be written as.
pub(super) const VALUES: &str = "\"arg1\" to \"arg6\" or \"global NAME\"";
/// What a place may be written as.
pub(super) const PLACES: &str =
    "\"return\", \"arg1\" to \"arg6\", \"*arg1\" to \"*arg6\" (what it points to) or \"global NAME\"";

fn argument(text: &str) -> Option<u8> {
    let number = text.strip_prefix("arg")?;
    (1..=MAX_ARGUMENT).find(|n| number == n.to_string())
}

impl FromStr for Value {
    type Err = ();
    fn from_str(text: &str) -> Result<Value, ()> {
        if let Some(n) = argument(text) {
            return Ok(Value::Argument(n));
        }
        let name = text.strip_prefix("global ").map(str::trim).unwrap_or_default();
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(());
        }
        Ok(Value::Global(name.to_owned()))
    }
}

impl FromStr for ValueSource {
    type Err = ();
    fn from_str(text: &str) -> Result<ValueSource, ()> {
        if text == "return" {
            return Ok(ValueSource::Returned);
        }
        match text.strip_prefix('*') {
            Some(pointee) => argument(pointee).map(ValueSource::Pointee).ok_or(()),
            None => text.parse().map(ValueSource::Entry),
        }
    }
}
