//! The ledger against a naive page map.

mod disagreement;
mod in_order;
mod mini_kernel;
mod out_of_order;
mod peak;
mod program;

use mini_kernel::{PID, Page};
use std::collections::BTreeMap;
use vmaudit::ledger::AddressSpaces;
use vmaudit::model::{PAGE, Sharing};

/// The ledger's map, page by page.
fn pages_of(spaces: &AddressSpaces) -> BTreeMap<u64, Page> {
    pages_of_pid(spaces, PID)
}

fn pages_of_pid(spaces: &AddressSpaces, pid: i32) -> BTreeMap<u64, Page> {
    let mut pages = BTreeMap::new();
    let ledger = spaces.ledger_of_pid(pid).expect("the process was seen");
    for piece in ledger.pieces() {
        let page = Page {
            origin: piece.event.map_or(0, |e| e.0),
            prot: piece.prot,
            shared: piece.sharing == Sharing::Shared,
        };
        for p in piece.range.start.0 / PAGE..piece.range.end.0 / PAGE {
            assert!(pages.insert(p, page).is_none(), "pieces overlap");
        }
    }
    pages
}
