//! Maps by numbers that the kernel hands out: pids, tids, addresses of its structures. Nobody
//! chooses them to collide, so a multiplication spreads them well enough.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(super) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// 2^64 divided by the golden ratio: neighbouring numbers end up far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Default, Debug)]
pub(super) struct IdHasher(u64);

impl IdHasher {
    fn add(&mut self, number: u64) {
        // The map's buckets come from the low bits, its tags from the high ones.
        let product = (self.0 ^ number).wrapping_mul(SPREAD);
        self.0 = product ^ (product >> 32);
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.add(u64::from(byte));
        }
    }

    fn write_i32(&mut self, number: i32) {
        self.add(u64::from(number as u32));
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
