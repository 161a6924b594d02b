//! Stack lines of `strace -k`.

/// A frame as libunwind saw it, named by the nearest symbol of the module's own tables: in a
/// stripped library often the name of another function.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct StraceFrame {
    /// Path of the module.
    pub module: Vec<u8>,
    /// Nearest symbol below the address; None where the module has no symbols.
    pub symbol: Option<String>,
    /// Bytes from that symbol; 0 without one.
    pub offset: u64,
    /// Address in the module (as its symbol table counts).
    pub address: u64,
}

/// `MODULE(SYMBOL+0xOFFSET) [0xADDRESS]` or `MODULE() [0xADDRESS]`. None for lines that are no
/// frame: `unexpected_backtracing_error [0x…]`, `... (3 frames left out)`.
pub(super) fn parse(line: &[u8]) -> Option<StraceFrame> {
    let line = std::str::from_utf8(line).ok().map(str::trim_end)?;
    let (before, address) = line.strip_suffix(']')?.rsplit_once(" [")?;
    let address = hex(address)?;
    let inner = before.strip_suffix(')')?;
    // C++ names have parentheses of their own; the module's path comes first.
    let open = inner.find('(')?;
    let (module, symbol) = (&inner[..open], &inner[open + 1..]);
    let (symbol, offset) = match symbol.rsplit_once("+0x") {
        Some((name, offset)) => (name, u64::from_str_radix(offset, 16).ok()?),
        None => (symbol, 0),
    };
    Some(StraceFrame {
        module: module.as_bytes().to_vec(),
        symbol: (!symbol.is_empty()).then(|| symbol.to_owned()),
        offset,
        address,
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_keeps_them() {
        let frame = parse(b"/usr/bin/node(v8::Heap::Grow(int)+0x1f) [0x1234]").expect("a frame");
        assert_eq!(frame.module, b"/usr/bin/node");
        assert_eq!(frame.symbol.as_deref(), Some("v8::Heap::Grow(int)"));
        assert_eq!((frame.offset, frame.address), (0x1f, 0x1234));
    }

    #[test]
    fn a_stripped_module_has_no_symbol() {
        let frame = parse(b"/opt/prog() [0x68222]").expect("a frame");
        assert_eq!((frame.symbol, frame.address), (None, 0x68222));
    }

    #[test]
    fn what_is_no_frame_is_none() {
        assert_eq!(parse(b"unexpected_backtracing_error [0x16]"), None);
        assert_eq!(parse(b"... (3 frames left out)"), None);
    }
}
