//! Reports out of order: calls of several threads take effect in one order and are reported in
//! another. The ledger's final map has to be the kernel's, byte for byte, and that of each forked
//! child what the kernel copied.

use super::mini_kernel::{END, FIRST, Page};
use super::program::{HandOver, Program, Step, THREADS, any_step};
use super::{pages_of, pages_of_pid};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn run(hand_over: HandOver, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut program = Program::new(hand_over);
    for step in steps {
        // Moves are indistinguishable from unmappings where mappings change hands unseen.
        if hand_over == HandOver::Unseen && (10..=13).contains(&step.kind) {
            continue;
        }
        program.step(step);
    }
    for thread in 0..THREADS {
        program.deliver(thread);
    }
    let (ledger, kernel) = (pages_of(&program.spaces), &program.kernel.pages);
    let differ: Vec<u64> = (FIRST..END).filter(|p| ledger.get(p) != kernel.get(p)).collect();
    prop_assert!(differ.is_empty(), "pages {:x?} differ after\n{}", differ, program.log.join("\n"));
    Ok(())
}

/// As `run`, with forks: every child has the copied map, and nothing in it is unexplained.
fn run_with_forks(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut program = Program::new(HandOver::WithReport);
    for step in steps {
        match step.kind {
            16 => program.fork(step.thread),
            17 if step.pick.is_multiple_of(2) => program.fork_again(step.pick as usize),
            _ => program.step(step),
        }
    }
    for thread in 0..THREADS {
        program.deliver(thread);
    }
    prop_assert_eq!(&pages_of(&program.spaces), &program.kernel.pages);
    for copy in &program.copies {
        let ledger = pages_of_pid(&program.spaces, copy.child);
        let log = || program.log.join("\n");
        let attributes = |pages: &BTreeMap<u64, Page>| {
            pages.iter().map(|(&p, page)| (p, page.prot, page.shared)).collect::<Vec<_>>()
        };
        prop_assert_eq!(
            attributes(&ledger),
            attributes(&copy.pages),
            "child {} after\n{}",
            copy.child,
            log()
        );
        for (&p, page) in &ledger {
            let plausible = page.origin != 0 && program.may_own(copy, p, page.origin);
            prop_assert!(plausible, "child {}: page {p:x} is {}'s after\n{}", copy.child, page.origin, log());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1200, ..ProptestConfig::default() })]

    #[test]
    fn delayed_reports_end_in_the_kernels_map(steps in prop::collection::vec(any_step(), 1..150)) {
        run(HandOver::WithReport, &steps)?;
    }

    #[test]
    fn mappings_that_change_hands_unseen_end_in_the_kernels_map(
        steps in prop::collection::vec(any_step(), 1..150)
    ) {
        run(HandOver::Unseen, &steps)?;
    }

    #[test]
    fn a_forks_copy_is_known_however_late_it_is_reported(
        steps in prop::collection::vec(any_step(), 1..150)
    ) {
        run_with_forks(&steps)?;
    }
}
