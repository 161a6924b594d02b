//! The ledger of allocations against a naive one: the same events, the same figures.

mod naive;

use naive::Naive;
use proptest::prelude::*;
use std::collections::BTreeMap;
use vmaudit::heap::sampling::{BLOCK, blocks};
use vmaudit::heap::{Filter, Heaps, LedgerOptions, Sampling};
use vmaudit::model::{Addr, ContextKey, Covers, HeapEvent, HeapOp, MmKey, StackId};

#[derive(Clone, Debug)]
enum Step {
    Heap { space: u8, thread: u8, stack: u8, op: HeapOp },
    Fork { parent: u8, child: u8 },
    Exit { space: u8 },
    Mark,
}

/// Few addresses, so that they coincide: some are freed twice, some handed out twice.
fn address() -> impl Strategy<Value = Addr> {
    (1u64..40).prop_map(|slot| Addr(slot * 16))
}

fn context() -> impl Strategy<Value = ContextKey> {
    (1u64..8).prop_map(|slot| ContextKey(slot << 12))
}

fn covers() -> impl Strategy<Value = Covers> {
    prop_oneof![Just(Covers::Itself), Just(Covers::Descendants), Just(Covers::Tree)]
}

fn op() -> impl Strategy<Value = HeapOp> {
    let some = || proptest::option::of(context());
    let allocated = (address(), 0u64..5000, some()).prop_map(|(address, size, context)| HeapOp::Allocated {
        address,
        size,
        context,
    });
    let ended = (address(), proptest::option::of(address()), 0u64..5000, some(), any::<bool>()).prop_map(
        |(old, new, size, context, failed)| HeapOp::ResizeEnded {
            old,
            new: new.filter(|_| !failed),
            size,
            context,
            failed,
        },
    );
    prop_oneof![
        12 => allocated,
        8 => address().prop_map(|address| HeapOp::Freed { address }),
        3 => address().prop_map(|address| HeapOp::ResizeBegun { address }),
        3 => ended,
        1 => (0u64..5000).prop_map(|size| HeapOp::Refused { size }),
        2 => (context(), some()).prop_map(|(context, parent)| HeapOp::ContextCreated {
            context,
            parent: parent.filter(|&p| p != context),
            name: Some(b"a name".to_vec()),
        }),
        1 => (context(), covers()).prop_map(|(context, covers)| HeapOp::ContextReset { context, covers }),
        1 => (context(), covers()).prop_map(|(context, covers)| HeapOp::ContextDeleted { context, covers }),
        2 => (context(), some())
            .prop_map(|(context, parent)| HeapOp::ContextMoved { context, parent }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => (0u8..3, 0u8..3, 0u8..5, op())
            .prop_map(|(space, thread, stack, op)| Step::Heap { space, thread, stack, op }),
        1 => (0u8..3, 0u8..3).prop_map(|(parent, child)| Step::Fork { parent, child }),
        1 => (0u8..3).prop_map(|space| Step::Exit { space }),
        1 => Just(Step::Mark),
    ]
}

fn mm(space: u8) -> MmKey {
    MmKey(0xffff_0000_0000_0000 + u64::from(space) * 64)
}

fn pid(space: u8) -> i32 {
    100 + i32::from(space)
}

/// The end of a resize that was begun, as the kernel reports it: with the address of its begin.
fn as_reported(op: HeapOp, naive: &Naive, (space, thread): (u8, u8)) -> HeapOp {
    let begun = naive.spaces.get(&mm(space)).and_then(|s| s.pending.get(&i32::from(thread)));
    match (op, begun) {
        (HeapOp::ResizeEnded { new, size, context, failed, .. }, Some(&(old, _))) if size % 8 != 0 => {
            HeapOp::ResizeEnded { old: Addr(old), new, size, context, failed }
        }
        (op, _) => op,
    }
}

fn run(steps: Vec<Step>) -> (Heaps, Naive, u64) {
    let (mut heaps, mut naive) = (Heaps::new(LedgerOptions::default()), Naive::default());
    let mut time_ns = 0;
    for step in steps {
        time_ns += 3_000_000;
        match step {
            Step::Heap { space, thread, stack, op } => {
                let event = HeapEvent {
                    time_ns,
                    pid: pid(space),
                    tid: i32::from(thread),
                    mm: mm(space),
                    function: u32::from(stack) % 2,
                    op: as_reported(op, &naive, (space, thread)),
                    stack: Ok(StackId(u32::from(stack))),
                };
                heaps.apply(&event);
                naive.apply(&event);
            }
            Step::Fork { parent, child } => {
                heaps.fork(mm(parent), mm(child), pid(child));
                naive.fork(mm(parent), mm(child));
            }
            Step::Exit { space } => {
                assert_eq!(
                    heaps.exit(pid(space), mm(space)).is_some(),
                    naive.spaces.remove(&mm(space)).is_some()
                );
            }
            Step::Mark => heaps.mark(time_ns),
        }
    }
    (heaps, naive, time_ns)
}

fn flow(flow: vmaudit::heap::ledger::Flow) -> (u64, u64) {
    assert_eq!(flow.blocks % BLOCK, 0);
    (flow.bytes, flow.blocks / BLOCK)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn figures_are_those_of_the_naive_ledger(steps in proptest::collection::vec(step(), 1..250)) {
        let (heaps, naive, now) = run(steps);
        prop_assert_eq!(heaps.ledgers().len(), naive.spaces.len());
        for (&mm, space) in &naive.spaces {
            let ledger = heaps.ledger(mm).unwrap();
            let picture = ledger.picture(heaps.sites(), Filter::default(), now);
            prop_assert_eq!(picture.shown.bytes, space.bytes());
            prop_assert_eq!(picture.shown.blocks(), space.outstanding().count() as u64);
            prop_assert_eq!(flow(picture.totals.outstanding), (space.bytes(), space.outstanding().count() as u64));
            let mut by_stack: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
            let mut by_context: BTreeMap<bool, u64> = BTreeMap::new();
            for block in space.outstanding() {
                let (bytes, count) = by_stack.entry(block.stack).or_default();
                (*bytes, *count) = (*bytes + block.size, *count + 1);
                *by_context.entry(block.context.is_some()).or_default() += block.size;
            }
            let rows: BTreeMap<u32, (u64, u64)> = picture
                .rows
                .iter()
                .map(|row| (row.stack.unwrap().0, (row.amount.bytes, row.amount.blocks())))
                .collect();
            prop_assert_eq!(rows.len(), picture.rows.len(), "one row a stack");
            prop_assert_eq!(rows, by_stack);
            for row in &picture.rows {
                let sums = space.sums[&row.stack.unwrap().0];
                prop_assert_eq!(flow(row.totals.allocated), sums.allocated);
                prop_assert_eq!(flow(row.totals.freed), sums.freed);
                prop_assert_eq!(flow(row.totals.inherited), sums.inherited);
                let t = row.totals;
                prop_assert_eq!(t.inherited.bytes + t.allocated.bytes, t.freed.bytes + t.outstanding.bytes);
            }
            let in_contexts: u64 =
                picture.contexts.iter().filter(|row| !row.path.is_empty()).map(|row| row.amount.bytes).sum();
            prop_assert_eq!(in_contexts, by_context.get(&true).copied().unwrap_or(0));
            prop_assert_eq!(ledger.context_count(), space.parents.len());
            let doubts = picture.doubts;
            prop_assert_eq!(
                (doubts.lost_frees, doubts.unseen_frees, doubts.doubtful_frees, doubts.refused),
                (space.lost_frees, space.unseen, 0, space.refused)
            );
            prop_assert_eq!(picture.peak.unwrap().bytes, space.peak);
        }
    }

    #[test]
    fn what_a_filter_takes_and_leaves_is_all(
        steps in proptest::collection::vec(step(), 1..200),
        older_ns in proptest::option::of(0u64..400_000_000),
        min_size in proptest::option::of(0u64..5000),
        max_size in proptest::option::of(0u64..5000),
        leaks_only: bool,
        mean in proptest::option::of(2u64..10_000),
    ) {
        let sampling = mean.map_or(Sampling::EXACT, Sampling::every);
        let mut heaps = Heaps::new(LedgerOptions { sampling, start_ns: 0 });
        let mut now = 0;
        for step in steps {
            now += 3_000_000;
            match step {
                Step::Heap { space, thread, stack, op } => heaps.apply(&HeapEvent {
                    time_ns: now,
                    pid: pid(space),
                    tid: i32::from(thread),
                    mm: mm(space),
                    function: 0,
                    op,
                    stack: Ok(StackId(u32::from(stack))),
                }),
                Step::Mark => heaps.mark(now),
                _ => {}
            }
        }
        let filter = Filter { older_ns, min_size, max_size, leaks_only };
        for ledger in heaps.ledgers() {
            let picture = ledger.picture(heaps.sites(), filter, now);
            let all = picture.totals.outstanding;
            prop_assert_eq!(picture.shown.bytes + picture.left_out.bytes, all.bytes);
            prop_assert_eq!(picture.shown.weight + picture.left_out.weight, all.blocks);
            prop_assert_eq!(picture.rows.iter().map(|row| row.amount.bytes).sum::<u64>(), picture.shown.bytes);
            prop_assert_eq!(picture.rows.iter().map(|row| row.amount.weight).sum::<u64>(), picture.shown.weight);
            if !picture.contexts.is_empty() {
                let sum: u64 = picture.contexts.iter().map(|row| row.amount.bytes).sum();
                prop_assert_eq!(sum, picture.shown.bytes);
            }
            prop_assert!(picture.rows.iter().all(|row| row.leaks || !leaks_only));
        }
    }
}

/// A generator of numbers from 0 to 1 (splitmix64): the same at each run.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Blocks of all sizes, drawn as the kernel draws them; the estimates of many draws.
fn estimates(mean: u64, sizes: &[u64], draws: u64) -> Vec<(f64, f64, f64)> {
    let sampling = Sampling::every(mean);
    let mut chance = Chance(mean);
    let draw = |_| {
        let mut heaps = Heaps::new(LedgerOptions { sampling, start_ns: 0 });
        for (at, &size) in sizes.iter().enumerate() {
            if chance.next() < sampling.probability(size) {
                heaps.apply(&HeapEvent {
                    time_ns: 1,
                    pid: 1,
                    tid: 1,
                    mm: MmKey(1),
                    function: 0,
                    op: HeapOp::Allocated { address: Addr(16 + at as u64 * 16), size, context: None },
                    stack: Ok(StackId(0)),
                });
            }
        }
        let Some(ledger) = heaps.ledger(MmKey(1)) else { return (0.0, 0.0, 0.0) };
        let shown = ledger.picture(heaps.sites(), Filter::default(), 2).shown;
        (shown.bytes as f64, blocks(shown.weight) as f64, shown.variance)
    };
    (0..draws).map(draw).collect()
}

/// The seed is fixed, so this gives the same figures each time; the bounds are those of a fair draw:
/// five standard errors of the mean.
#[test]
fn estimates_are_unbiased_and_their_error_is_the_true_one() {
    let sizes: Vec<u64> =
        (0..700u64).map(|i| [16, 48, 200, 1000, 5000, 70_000, 1 << 20][i as usize % 7]).collect();
    let truth: u64 = sizes.iter().sum();
    let draws = 300;
    for mean in [64, 4096, 100_000] {
        let figures = estimates(mean, &sizes, draws);
        let average = |of: fn(&(f64, f64, f64)) -> f64| figures.iter().map(of).sum::<f64>() / draws as f64;
        let sampling = Sampling::every(mean);
        let p = |size: u64| sampling.probability(size);
        // the variance of the estimator itself, from all blocks
        let variance: f64 = sizes.iter().map(|&s| (s * s) as f64 * (1.0 - p(s)) / p(s)).sum();
        let of_mean = (variance / draws as f64).sqrt();
        let bytes = average(|f| f.0);
        assert!((bytes - truth as f64).abs() < 5.0 * of_mean + 1.0, "{mean}: {bytes} of {truth} ± {of_mean}");
        let blocks = average(|f| f.1);
        let of_blocks = (sizes.iter().map(|&s| (1.0 - p(s)) / p(s)).sum::<f64>() / draws as f64).sqrt();
        assert!((blocks - sizes.len() as f64).abs() < 5.0 * of_blocks + 1.0, "{mean}: {blocks}");
        let stated = average(|f| f.2);
        assert!((stated / variance - 1.0).abs() < 0.1, "{mean}: {stated} stated, {variance} true");
        let within = figures.iter().filter(|f| (f.0 - truth as f64).abs() <= 2.0 * f.2.sqrt() + 1.0).count();
        assert!(within * 100 >= draws as usize * 90, "{mean}: {within} of {draws} within two errors");
    }
}

#[test]
fn every_allocation_weighs_itself_without_sampling() {
    for sampling in [Sampling::EXACT, Sampling::every(0), Sampling::every(1)] {
        let weight = sampling.weight(4096);
        assert_eq!((weight.bytes, weight.blocks, sampling.variance(4096)), (4096, BLOCK, 0.0));
    }
}
