//! Maps whose keys are small integers (ids of threads, processes, address spaces, stacks) that no adversary
//! chooses: each event hashes a handful of them.

pub use rustc_hash::{FxBuildHasher as BuildIntHasher, FxHashMap as IntMap};
