//! How much memory the tables of all files, perf maps among them, may take together: each is as large as its file says,
//! and there may be any number of files.

use std::sync::atomic::{AtomicU64, Ordering};

/// A browser with its symbols has some 500 MiB of tables, kept twice at most.
const MOST: u64 = 2 << 30;

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Memory that a table takes, given back when this is dropped.
#[derive(Debug, Default)]
pub struct Held(u64);

impl Held {
    /// None where all tables would then take more than [`MOST`].
    pub fn take(bytes: u64) -> Option<Held> {
        Held::take_of(&TAKEN, bytes)
    }

    /// Takes more; false, and nothing is taken, where that does not fit.
    #[must_use]
    pub fn grow(&mut self, bytes: u64) -> bool {
        let taken = Held::take(bytes);
        // Given back with the rest.
        taken.map(std::mem::forget).inspect(|()| self.0 += bytes).is_some()
    }

    /// Gives a part back.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.0);
        self.0 -= bytes;
        drop(Held(bytes));
    }

    fn take_of(taken: &AtomicU64, bytes: u64) -> Option<Held> {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|&sum| sum <= MOST);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok().then_some(Held(bytes))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let taken = AtomicU64::new(0);
        let first = Held::take_of(&taken, MOST - 1).expect("it fits");
        for bytes in [2, MOST, u64::MAX] {
            assert!(Held::take_of(&taken, bytes).is_none(), "{bytes}");
        }
        let second = Held::take_of(&taken, 1).expect("the last byte");
        assert_eq!(taken.load(Ordering::Relaxed), MOST);
        // They are of another sum than the one that dropping changes.
        std::mem::forget((first, second));
    }
}
