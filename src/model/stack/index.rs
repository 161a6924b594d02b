//! Numbers of stacks by the hashes of their frames. Only the numbers are kept, four bytes each, and hashes are computed
//! again where the table grows: with the hashes, a million stacks took 36 MB, and 54 MB while the table grew.

/// No stack has it.
const FREE: u32 = u32::MAX;

/// Open addressing: a number is at the place that its hash gives, or at one of the next.
#[derive(Default, Debug)]
pub(super) struct NumberIndex {
    /// A power of two of places, at most three quarters of them used.
    places: Vec<u32>,
    used: usize,
}

fn place_of(hash: u64, places: usize) -> usize {
    // The lower bits are the better ones (rustc_hash).
    hash as usize & places.wrapping_sub(1)
}

impl NumberIndex {
    /// The numbers that may have this hash.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = u32> {
        let (before, from) = self.places.split_at(place_of(hash, self.places.len()).min(self.places.len()));
        from.iter().chain(before).copied().take_while(|&number| number != FREE)
    }

    /// Adds a number that is not there, by its hash. `hash_of` gives those of the others again.
    pub fn insert(&mut self, (number, hash): (u32, u64), hash_of: impl Fn(u32) -> u64) {
        if (self.used + 1) * 4 > self.places.len() * 3 {
            let places = (self.places.len() * 2).max(64);
            let before = std::mem::replace(&mut self.places, vec![FREE; places]);
            for number in before.into_iter().filter(|&number| number != FREE) {
                self.put(number, hash_of(number));
            }
        }
        self.put(number, hash);
        self.used += 1;
    }

    fn put(&mut self, number: u32, hash: u64) {
        let places = self.places.len();
        let mut place = place_of(hash, places);
        while self.places[place] != FREE {
            place = (place + 1) % places;
        }
        self.places[place] = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_found_by_its_hash() {
        // Many have the same hash, and some that of the last place.
        let hash = |number: u32| u64::from(number % 97).wrapping_neg();
        let mut index = NumberIndex::default();
        assert_eq!(index.candidates(7).next(), None);
        for number in 0..3000 {
            assert!(!index.candidates(hash(number)).any(|found| found == number));
            index.insert((number, hash(number)), hash);
        }
        assert!((0..3000).all(|number| index.candidates(hash(number)).any(|found| found == number)));
        assert!(index.places.len() <= 4096 && index.used == 3000);
    }
}
