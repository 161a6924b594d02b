//! How much memory the tables of all files, perf maps among them, may take together: each is as large as its file says,
//! and there may be any number of files.

use std::sync::atomic::{AtomicU64, Ordering};

/// A browser with its symbols has some 500 MiB of tables, kept twice at most.
const MOST: u64 = 2 << 30;

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Memory that a table takes, given back when this is dropped.
#[derive(Debug)]
pub struct Held {
    bytes: u64,
    of: &'static AtomicU64,
}

impl Default for Held {
    fn default() -> Held {
        Held { bytes: 0, of: &TAKEN }
    }
}

impl Held {
    /// None where all tables would then take more than [`MOST`].
    pub fn take(bytes: u64) -> Option<Held> {
        Held::take_of(&TAKEN, bytes)
    }

    /// Takes more; false, and nothing is taken, where that does not fit.
    #[must_use]
    pub fn grow(&mut self, bytes: u64) -> bool {
        let taken = Held::take_of(self.of, bytes);
        // Given back with the rest.
        taken.map(std::mem::forget).inspect(|()| self.bytes += bytes).is_some()
    }

    /// Gives a part back.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        drop(Held { bytes, of: self.of });
    }

    fn take_of(of: &'static AtomicU64, bytes: u64) -> Option<Held> {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|&sum| sum <= MOST);
        // What was not taken must not be made: it would be given back.
        of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok().then(|| Held { bytes, of })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        static SUM: AtomicU64 = AtomicU64::new(0);
        let mut first = Held::take_of(&SUM, MOST - 1).expect("it fits");
        for bytes in [2, MOST, u64::MAX] {
            assert!(Held::take_of(&SUM, bytes).is_none() && !first.grow(bytes), "{bytes}");
        }
        let second = Held::take_of(&SUM, 1).expect("the last byte");
        assert_eq!(SUM.load(Ordering::Relaxed), MOST);
        first.shrink(10);
        assert_eq!(SUM.load(Ordering::Relaxed), MOST - 10);
        drop((first, second));
        assert_eq!(SUM.load(Ordering::Relaxed), 0);
    }
}
