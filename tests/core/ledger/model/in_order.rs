//! Random calls of one thread, reported in order.

use super::mini_kernel::{Call, END, FIRST, MiniKernel, PID, exec};
use super::pages_of;
use proptest::prelude::*;
use vmaudit::ledger::AddressSpaces;

pub fn any_call() -> impl Strategy<Value = Call> {
    let at = || FIRST..END - 12;
    let len = || 1..12u64;
    let prot = || prop_oneof![Just(0u64), Just(1), Just(3), Just(5)];
    prop_oneof![
        4 => (len(), prot(), any::<bool>()).prop_map(|(len, prot, shared)| Call::Mmap { len, prot, shared }),
        2 => (at(), len(), prot()).prop_map(|(at, len, prot)| Call::MmapFixed { at, len, prot }),
        1 => (at(), len(), prot()).prop_map(|(at, len, prot)| Call::MmapNoReplace { at, len, prot }),
        3 => (at(), len()).prop_map(|(at, len)| Call::Munmap { at, len }),
        4 => (at(), len(), prot()).prop_map(|(at, len, prot)| Call::Mprotect { at, len, prot }),
        3 => (at(), len(), len()).prop_map(|(at, len, new_len)| Call::Mremap { at, len, new_len }),
        1 => (at(), len(), len()).prop_map(|(at, len, new_len)| Call::MremapInPlace { at, len, new_len }),
        2 => (at(), len(), len(), at())
            .prop_map(|(at, len, new_len, to)| Call::MremapFixed { at, len, new_len, to }),
        1 => (at(), len()).prop_map(|(at, len)| Call::MremapKeep { at, len }),
        1 => (at(), len()).prop_map(|(at, new_len)| Call::Duplicate { at, new_len }),
        2 => (0..20u64).prop_map(|by| Call::Brk { to: FIRST + by }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 700, ..ProptestConfig::default() })]

    /// Reports in the order of the calls: the map is right after each one.
    #[test]
    fn every_call_has_the_kernels_effect(calls in prop::collection::vec(any_call(), 1..60)) {
        let mut kernel = MiniKernel::new();
        let mut spaces = AddressSpaces::new();
        spaces.apply(&exec());
        for call in calls {
            spaces.apply(&kernel.call(PID, call));
            prop_assert_eq!(&pages_of(&spaces), &kernel.pages, "after {:?}", call);
        }
        let ledger = spaces.ledger_of_pid(PID).expect("seen");
        prop_assert_eq!(ledger.unreported_bytes(), 0);
    }
}
