//! A difference of two reports as text.

mod tables;
pub(super) mod text;
