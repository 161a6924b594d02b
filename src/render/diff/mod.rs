//! A difference of two reports as text.

pub(super) mod heap;
mod tables;
pub(super) mod text;
