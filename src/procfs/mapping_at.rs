//! One mapping out of maps, for the rare call whose result does not say what it mapped.

use super::maps::parse_line;
use crate::model::{Addr, Mapping, Tid};
use std::fs::File;
use std::io::{BufRead, BufReader};

/// The mapping that holds `addr` now, seen through thread `tid`; None when there is none or the
/// process cannot be read.
pub fn mapping_at(tid: Tid, addr: Addr) -> Option<Mapping> {
    let file = File::open(format!("/proc/{tid}/maps")).ok()?;
    let lines = BufReader::with_capacity(64 << 10, file).split(b'\n');
    lines
        .map_while(Result::ok)
        .filter_map(|line| parse_line(&line).ok())
        .find(|mapping| mapping.range.end > addr)
        .filter(|mapping| mapping.range.start <= addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mapping_of_its_own_code() {
        let here = Addr(finds_the_mapping_of_its_own_code as *const () as u64);
        let found = mapping_at(std::process::id() as Tid, here).expect("own code is mapped");
        assert!(found.range.contains(here) && found.prot.exec);
        assert_eq!(mapping_at(std::process::id() as Tid, Addr(0)), None);
    }
}
