//! The ledger against the kernel: 200 seeds of random address-space work by several threads and
//! their children. Each process writes its own /proc/self/maps just before it leaves; the report's
//! regions have to be that file, with nothing lost, unknown or in disagreement.

use crate::support::churn::{differences, mode, run_seed};
use crate::support::report::{Span, spans_of_maps};
use crate::support::skip_without_bpf;

const SHARDS: u64 = 8;
const SEEDS: u64 = 200;

fn shard(index: u64) {
    if skip_without_bpf("run_churn") {
        return;
    }
    let failures: Vec<String> = (0..SEEDS)
        .filter(|seed| seed / 8 % SHARDS == index)
        .filter_map(|seed| {
            let wrong = run_seed(seed, &[]);
            (!wrong.is_empty()).then(|| format!("seed {seed} ({}): {}", mode(seed), wrong.join("\n")))
        })
        .collect();
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n"));
}

macro_rules! shards {
    ($($name:ident $index:literal),*) => {
        $(#[test] fn $name() { shard($index); })*
    };
}

shards!(seeds_0 0, seeds_1 1, seeds_2 2, seeds_3 3, seeds_4 4, seeds_5 5, seeds_6 6, seeds_7 7);

#[test]
fn a_difference_is_seen() {
    let maps = b"1000-3000 rw-p 00000000 00:00 0 \n3000-4000 rw-p 00000000 00:00 0  [heap]\n\
        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
    let spans = spans_of_maps(maps);
    assert_eq!(spans, [Span { start: 0x1000, end: 0x4000, prot: "rw-p".into() }]);
    let other = [Span { start: 0x1000, end: 0x4000, prot: "r--p".into() }];
    assert!(differences(&spans, &other).contains("0x1000-0x4000 rw-p"));
}
