//! How a command is started, held at its exit and let go.
//!
//! A binary of its own: the tests fork without exec to play vmaudit, so that no other test's pipes and
//! children may be in this process.

#[path = "../support/mod.rs"]
mod support;

mod cost;
mod guard;
mod hold;
mod keeper;
mod player;
mod signals;
mod start;
