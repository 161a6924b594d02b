//! Arguments and results of one call.

use super::flags;
use vmaudit::model::{Addr, FileRef, VmOp};

/// Splits `ARGS) = RESULT`.
pub(super) fn split_result(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.windows(3).rposition(|w| w == b" = ")?;
    let args = text[..at].trim_ascii_end().strip_suffix(b")")?;
    Some((args, text[at + 3..].trim_ascii()))
}

/// A result: address, number, or -errno. None for `?` and for what cannot be read.
pub(super) fn result(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let mut words = text.split_ascii_whitespace();
    let value = words.next()?;
    if value == "-1" {
        let name = words.next().unwrap_or_default();
        return Some(flags::errno(name).map_or(-1, |e| -e));
    }
    number(value.as_bytes()).map(|n| n as i64)
}

/// `0x1f`, `31`, `037`, `-1`, `NULL`.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    if text == "NULL" {
        return Some(0);
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    if text.len() > 1 && text.starts_with('0') {
        return u64::from_str_radix(&text[1..], 8).ok();
    }
    match text.strip_prefix('-') {
        Some(negative) => negative.parse::<i64>().ok().map(|n| (-n) as u64),
        None => text.parse().ok(),
    }
}

/// `1700000000.123456` in nanoseconds; None for times of day.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    let (whole, part) = std::str::from_utf8(text).ok()?.split_once('.')?;
    let whole: u64 = whole.parse().ok()?;
    let digits = part.get(..part.len().min(9))?;
    let fraction: u64 = digits.parse().ok()?;
    let scale = 10u64.pow(9 - digits.len() as u32);
    whole.checked_mul(1_000_000_000)?.checked_add(fraction * scale)
}

/// `+++ exited with 3 +++`, `+++ killed by SIGSEGV (core dumped) +++` as a wait status.
pub(super) fn wait_status(text: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(text).ok()?;
    if let Some(code) = text.strip_prefix("+++ exited with ") {
        let code: i32 = code.split_ascii_whitespace().next()?.parse().ok()?;
        return Some((code & 0xff) << 8);
    }
    let signal = text.strip_prefix("+++ killed by ")?.split_ascii_whitespace().next()?;
    Some(match signal {
        "SIGHUP" => 1,
        "SIGINT" => 2,
        "SIGQUIT" => 3,
        "SIGILL" => 4,
        "SIGTRAP" => 5,
        "SIGABRT" => 6,
        "SIGBUS" => 7,
        "SIGFPE" => 8,
        "SIGKILL" => 9,
        "SIGSEGV" => 11,
        "SIGPIPE" => 13,
        "SIGALRM" => 14,
        "SIGTERM" => 15,
        "SIGSYS" => 31,
        _ => return None,
    })
}

/// What execve's line contains: the path, as it was given.
pub(super) fn exec(args: &[u8]) -> VmOp {
    let path = split(args).first().and_then(|a| a.strip_prefix(b"\"")?.strip_suffix(b"\""));
    VmOp::Exec {
        exe: path.map(|p| FileRef { major: 0, minor: 0, inode: 0, path: p.to_vec(), deleted: false }),
        start_brk: Addr(0),
        brk: Addr(0),
        start_stack: Addr(0),
        compat: false,
        mappings: None,
    }
}

/// The call by name and arguments. None for calls that change no mapping (other prctls, refused
/// forks).
pub(super) fn op(name: &[u8], text: &[u8]) -> Result<Option<VmOp>, &'static str> {
    let args = Args(split(text));
    Ok(Some(match name {
        b"mmap" | b"mmap2" => {
            let flags = args.flags(3)?;
            VmOp::Mmap {
                addr: args.addr(0)?,
                len: args.number(1)?,
                prot: args.flags(2)?,
                flags,
                fd: args.fd(4)?,
                offset: args.number(5)?,
                file: args.file(4),
            }
        }
        b"munmap" => VmOp::Munmap { addr: args.addr(0)?, len: args.number(1)? },
        b"mremap" => VmOp::Mremap {
            old: args.addr(0)?,
            old_len: args.number(1)?,
            new_len: args.number(2)?,
            flags: args.flags(3)?,
            new_addr: if args.0.len() > 4 { args.addr(4)? } else { Addr(0) },
        },
        b"brk" => VmOp::Brk { requested: args.addr(0)?, current: None },
        b"mprotect" | b"pkey_mprotect" => VmOp::Mprotect {
            addr: args.addr(0)?,
            len: args.number(1)?,
            prot: args.flags(2)?,
            pkey: if name == b"mprotect" { None } else { Some(args.number(3)? as i32) },
        },
        b"madvise" => {
            VmOp::Madvise { addr: args.addr(0)?, len: args.number(1)?, advice: args.flags(2)? as i32 }
        }
        b"process_madvise" => {
            let count = args.0.len();
            let advice = args.flags(count.saturating_sub(2))? as i32;
            VmOp::ProcessMadvise { pidfd: args.fd(0)?, iovecs: args.number(count.saturating_sub(3))?, advice }
        }
        b"shmat" => VmOp::Shmat {
            shmid: args.number(0)? as i32,
            addr: args.addr(1)?,
            flags: args.flags(2)?,
            mapped: None,
        },
        b"shmdt" => VmOp::Shmdt { addr: args.addr(0)? },
        b"remap_file_pages" => VmOp::RemapFilePages {
            addr: args.addr(0)?,
            len: args.number(1)?,
            pgoff: args.number(3)?,
            flags: args.flags(4)?,
        },
        b"io_setup" => VmOp::IoSetup { nr_events: args.number(0)?, mapped: None },
        b"io_destroy" => VmOp::IoDestroy { ctx: args.addr(0)? },
        b"map_shadow_stack" => {
            VmOp::MapShadowStack { addr: args.addr(0)?, len: args.number(1)?, flags: args.flags(2)? }
        }
        b"prctl" => return args.prctl(),
        _ => return Ok(None),
    }))
}

struct Args<'a>(Vec<&'a [u8]>);

impl Args<'_> {
    fn text(&self, index: usize) -> Result<&str, &'static str> {
        let arg = self.0.get(index).ok_or("too few arguments")?;
        std::str::from_utf8(arg).map_err(|_| "not text")
    }

    fn number(&self, index: usize) -> Result<u64, &'static str> {
        number(self.text(index)?.as_bytes()).ok_or("not a number")
    }

    fn addr(&self, index: usize) -> Result<Addr, &'static str> {
        self.number(index).map(Addr)
    }

    /// `A|B|0x10 /* ??? */|21<<MAP_HUGE_SHIFT`.
    fn flags(&self, index: usize) -> Result<u64, &'static str> {
        let mut sum = 0;
        for term in self.text(index)?.split('|') {
            let term = term.split("/*").next().unwrap_or_default().trim();
            sum |= match term.strip_suffix("<<MAP_HUGE_SHIFT") {
                Some(log2) => number(log2.as_bytes()).ok_or("not a number")? << 26,
                None => flags::value(term)
                    .or_else(|| number(term.as_bytes()))
                    .ok_or("not a flag that is known")?,
            };
        }
        Ok(sum)
    }

    /// `3`, `-1`, and with -y `3</lib/libc.so.6>`.
    fn fd(&self, index: usize) -> Result<i32, &'static str> {
        let text = self.text(index)?;
        let digits = text.split('<').next().unwrap_or_default();
        number(digits.as_bytes()).map(|n| n as i32).ok_or("not a file descriptor")
    }

    /// The path that -y prints behind a file descriptor.
    fn file(&self, index: usize) -> Option<FileRef> {
        let arg = self.0.get(index)?;
        let open = arg.iter().position(|&b| b == b'<')?;
        let rest = &arg[open + 1..];
        let deleted = rest.ends_with(b">(deleted)");
        let path = rest.strip_suffix(b">(deleted)").or_else(|| rest.strip_suffix(b">"))?;
        Some(FileRef { major: 0, minor: 0, inode: 0, path: path.to_vec(), deleted })
    }

    fn prctl(&self) -> Result<Option<VmOp>, &'static str> {
        match self.text(0)? {
            "PR_SET_VMA" => {
                let quoted = self.text(4)?;
                let name = quoted.strip_prefix('"').and_then(|q| q.strip_suffix('"'));
                let name = name.map(|n| n.as_bytes().to_vec());
                Ok(Some(VmOp::SetVmaName { addr: self.addr(2)?, len: self.number(3)?, name }))
            }
            "PR_SET_MM" => {
                Ok(Some(VmOp::SetMm { option: self.flags(1)? as i32, value: self.number(2).unwrap_or(0) }))
            }
            _ => Ok(None),
        }
    }
}

/// Splits at commas outside quotes, brackets and `<path>`.
fn split(text: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let (mut start, mut depth, mut quoted, mut escaped) = (0, 0usize, false, false);
    let mut in_path = false;
    for (i, &b) in text.iter().enumerate() {
        if quoted {
            match b {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => quoted = false,
                _ => {}
            }
            continue;
        }
        match b {
            b'>' if in_path => in_path = false,
            _ if in_path => {}
            b'"' => quoted = true,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            // A file descriptor's path, not a shift.
            b'<' if text.get(i + 1) == Some(&b'/') => in_path = true,
            b',' if depth == 0 => {
                parts.push(text[start..i].trim_ascii());
                start = i + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim_ascii();
    if !last.is_empty() {
        parts.push(last);
    }
    parts
}
