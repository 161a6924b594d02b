//! Values from the kernel that hold for many processes and change slowly: read once in a while, however many
//! processes are examined.

use super::clock::monotonic_ns;

/// How long an answer is taken for the present one, ns.
const FRESH: u64 = 50_000_000;

/// The last value with its time and key.
#[derive(Debug, Default)]
pub struct Recent<K, V>(Option<(u64, K, V)>);

impl<K: PartialEq, V: Clone> Recent<K, V> {
    pub const fn new() -> Recent<K, V> {
        Recent(None)
    }

    /// The value for `key`, read again if the last one is old.
    pub fn of(&mut self, key: K, read: impl FnOnce() -> V) -> V {
        let now = monotonic_ns();
        match &self.0 {
            Some((at, known, value)) if *known == key && now.saturating_sub(*at) < FRESH => value.clone(),
            _ => {
                let value = read();
                self.0 = Some((now, key, value.clone()));
                value
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_once_for_the_same() {
        let mut recent = Recent::new();
        assert_eq!(recent.of("a", || 1), 1);
        assert_eq!(recent.of("b", || 2), 2);
        // Of another one, or long ago.
        assert_eq!(recent.of("a", || 3), 3);
        recent.0 = recent.0.map(|(at, key, value)| (at - FRESH, key, value));
        assert_eq!(recent.of("a", || 4), 4);
        recent.0 = recent.0.map(|(at, key, value)| (at + (1 << 40), key, value));
        assert_eq!(recent.of("a", || 5), 4);
    }
}
