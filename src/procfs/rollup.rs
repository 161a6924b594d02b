//! `/proc/PID/smaps_rollup`: the sums of smaps in one read (Linux 4.14; fs/proc/task_mmu.c,
//! `show_smaps_rollup`). It walks all page tables under the mmap lock: not for every snapshot.

use super::error::ObserveError;
use super::process_dir::ProcessDir;
use super::smaps::parse_smaps;
use crate::model::Pid;

/// What is resident, and the process' share of it, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    pub rss: u64,
    /// A page that n processes have counts for one n-th.
    pub pss: u64,
    pub swap: u64,
    pub swap_pss: u64,
}

/// Reads the sums of a living process.
///
/// # Errors
/// When it is gone, or may not be read.
pub fn read_shares(pid: Pid) -> Result<Shares, ObserveError> {
    let dir = ProcessDir::open(pid, pid)?;
    let bytes = dir.read("smaps_rollup")?;
    parse(&bytes).ok_or_else(|| dir.malformed("smaps_rollup", "no sums"))
}

/// Of what is resident: bytes in transparent huge pages.
pub(super) fn read_huge(dir: &ProcessDir) -> Option<u64> {
    let sums = parse_smaps(&dir.read("smaps_rollup").ok()?).entries.into_iter().next()?;
    Some(sums.anon_huge_pages)
}

/// A header as of one mapping from the first to the last, then the fields of smaps.
fn parse(bytes: &[u8]) -> Option<Shares> {
    let sums = parse_smaps(bytes).entries.into_iter().next()?;
    Some(Shares { rss: sums.rss, pss: sums.pss, swap: sums.swap, swap_pss: sums.swap_pss })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_a_process_and_of_text() {
        let own = read_shares(std::process::id() as Pid).expect("its own");
        assert!(own.pss > 0 && own.pss <= own.rss);
        let text =
            b"55d1-7ffe0 ---p 00000000 00:00 0                    [rollup]\nRss:    8 kB\nPss:  3 kB\n\
            Pss_Dirty: 1 kB\nSwap: 0 kB\nSwapPss: 0 kB\n";
        assert_eq!(parse(text), Some(Shares { rss: 8192, pss: 3072, swap: 0, swap_pss: 0 }));
        assert_eq!(parse(b""), None);
    }
}
