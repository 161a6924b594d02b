//! Names that a program gave its memory with prctl(PR_SET_VMA_ANON_NAME) and that no other rule
//! knows: shown as they are. The traced call shows them also where the kernel refused (EINVAL
//! without CONFIG_ANON_VMA_NAME).

use super::app::APP_MMAP;
use super::loader::LOADER;
use super::pthread::{self, LIVE, THREAD_STACK};
use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::CallPath;
use crate::attribution::category::{Evidence, Instance, Merge};
use crate::ledger::{Region, RegionKind};
use crate::model::{Addr, is_hidden};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Part of what a program named itself.
pub const NAMED: &str = "named by the program";
pub const DEV_ZERO: &str = "private mapping of /dev/zero";

/// How many names a title has space for.
const SHOWN: usize = 3;
const MAX_CHARS: usize = 40;

/// Beginnings of names, and whose they are: as the sources of Android and of browsers have them.
const OWNERS: &[(&str, &str)] = &[
    ("GWP-ASan", "Android's sampling of malloc errors"),
    ("bionic", "Android's C library"),
    ("linker_alloc", "Android's dynamic linker"),
    ("dalvik-", "Android's runtime (ART)"),
    ("partition_alloc", "PartitionAlloc (Chromium)"),
    ("js-", "SpiderMonkey (Firefox)"),
    ("absl", "Abseil's allocator for itself (LowLevelAlloc)"),
];

pub struct NamedRule;

impl Rule for NamedRule {
    fn id(&self) -> &'static str {
        "named"
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        // bionic (libc/bionic/pthread_create.cpp), the linker's bss
        let name = subject.anon_name()?;
        if name.starts_with(b"stack_and_tls:") || name == b"thread signal stack" {
            return Some(Claim::new(THREAD_STACK, Evidence::Name, LIVE));
        }
        (name == b".bss").then(|| Claim::new(LOADER, Evidence::Name, "bss").merge(Merge::ByCategory))
    }

    // after the stacks: an allocator's own calls are its own, whatever it calls them
    fn by_header(&self, subject: &Subject<'_>, world: &World<'_>) -> Option<Claim> {
        // and so is what a runtime laid out
        (!world.is_surveyed(subject.range.start)).then(|| claim(subject))?
    }

    fn by_shape(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        claim(subject)
    }

    /// A name may be given to a part of what a call mapped; maps splits there, where the kernel keeps names.
    fn cuts(&self, region: &Region, world: &World<'_>) -> Vec<Addr> {
        world.record(region).map(|record| record.anon_names.edges().collect()).unwrap_or_default()
    }

    fn advise(&self, group: &Group<'_>, world: &World<'_>) -> Advice {
        advise(group, world)
    }
}

fn claim(subject: &Subject<'_>) -> Option<Claim> {
    let anonymous = [RegionKind::Anonymous, RegionKind::SharedAnonymous];
    if !anonymous.contains(&subject.region.kind) {
        return None;
    }
    // where a part has the name, the rest is another finding
    let whole = subject.path.filter(|_| subject.range == subject.span);
    let merge = whole.map_or(Merge::ByStack, |path| Merge::ByCaller(path.caller()));
    if let Some(name) = subject.anon_name() {
        let claim = Claim::new(APP_MMAP, Evidence::Name, NAMED).merge(merge);
        return Some(match subject.record {
            Some(_) => claim,
            None => claim.instance(Instance::Named(name.to_vec())),
        });
    }
    let dev_zero = subject.name() == b"/dev/zero" && subject.is_private_anonymous();
    dev_zero.then(|| Claim::new(APP_MMAP, Evidence::Name, DEV_ZERO).merge(merge))
}

fn advise(group: &Group<'_>, world: &World<'_>) -> Advice {
    if group.category == THREAD_STACK {
        return pthread::advice::advise(group, world);
    }
    let mut sums: HashMap<&[u8], u64> = HashMap::new();
    for piece in &group.pieces {
        if let Some(name) = world.given_name(piece.region, piece.range.start) {
            *sums.entry(name).or_default() += piece.footprint.virt;
        }
    }
    let mut names: Vec<(u64, &[u8])> = sums.into_iter().map(|(name, bytes)| (bytes, name)).collect();
    names.sort_by_key(|&(bytes, name)| (Reverse(bytes), name));
    if names.is_empty() {
        return Advice::why(
            "private memory made by mapping /dev/zero, as programs did before MAP_ANONYMOUS; pages count \
             only when touched",
        );
    }
    let owner = |name: &[u8]| OWNERS.iter().find(|(start, _)| name.starts_with(start.as_bytes()));
    let largest = names.first().and_then(|(_, name)| owner(name)).map(|(_, owner)| *owner);
    let caller = group.path.and_then(CallPath::caller_line).and_then(|line| line.display.clone());
    let by = match (largest, caller) {
        (Some(owner), _) => format!("the name is one of {owner}"),
        (None, Some(caller)) => format!("{caller} asked for it, and the program gave it this name"),
        (None, None) => "the program itself gave it this name (PR_SET_VMA)".to_string(),
    };
    let mut advice = Advice::why(format!("{by}; pages count only when touched"));
    let mut shown: Vec<String> =
        names.iter().take(SHOWN).map(|(_, name)| format!("\u{201c}{}\u{201d}", printable(name))).collect();
    if names.len() > SHOWN {
        shown.push(format!("{} more", names.len() - SHOWN));
    }
    let what = if group.instances == 1 { "memory" } else { "mappings" };
    advice.title = Some(format!("{what} named {}", shown.join(", ")));
    advice
}

/// A name in a line of text: what is no letter of UTF-8 or moves the cursor is escaped.
pub fn printable(name: &[u8]) -> String {
    let mut out = String::new();
    for (n, c) in String::from_utf8_lossy(name).chars().enumerate() {
        if n == MAX_CHARS {
            out.push('\u{2026}');
            break;
        }
        if is_hidden(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn odd_names_stay_on_their_line() {
        assert_eq!(printable(b"my cache\n\x1b[31m"), "my cache\\n\\u{1b}[31m");
        assert_eq!(printable(b"\xff\xe4"), "\u{fffd}\u{fffd}");
        assert_eq!(printable(&[b'x'; 80]).chars().count(), 41);
    }
}
