//! A hasher for small integer keys (ids of threads, processes, address spaces, stacks).

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

/// A map keyed by numbers that no adversary chooses.
pub type IntMap<K, V> = HashMap<K, V, BuildIntHasher>;

/// A multiply and a rotation for each word, as rustc's FxHash does. Each event hashes a handful of
/// ids, and nobody profits from collisions among them.
#[derive(Default, Clone, Copy, Debug)]
pub struct BuildIntHasher;

#[derive(Default)]
pub struct IntHasher(u64);

impl BuildHasher for BuildIntHasher {
    type Hasher = IntHasher;
    fn build_hasher(&self) -> IntHasher {
        IntHasher::default()
    }
}

impl IntHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for IntHasher {
    fn finish(&self) -> u64 {
        // hashbrown takes its bucket from the low bits and its tag from the high ones.
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.add(u64::from(byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.add(u64::from(value));
    }
    fn write_i32(&mut self, value: i32) {
        self.add(u64::from(value as u32));
    }
    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }
    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }
    fn write_isize(&mut self, value: isize) {
        self.add(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_and_multiples_of_pages_spread() {
        let buckets = |step: u64| {
            let hashes = (0..1024u64).map(|i| BuildIntHasher.hash_one(i * step) & 1023);
            hashes.collect::<std::collections::HashSet<_>>().len()
        };
        assert!(buckets(1) > 512, "{}", buckets(1));
        assert!(buckets(4096) > 512, "{}", buckets(4096));
    }
}
