//! What the kernel's side copies, and into how much room: of all that trace.

use crate::model::sample;
use clap::Args;

#[derive(Args, Clone, Copy, Debug)]
pub struct StackArgs {
    /// Copy at most N bytes of each call's user stack
    #[arg(long, value_name = "N", default_value_t = sample::STACK_BYTES, value_parser = clap::value_parser!(u64).range(0..=262_144))]
    pub stack_bytes: u64,
}

#[derive(Args, Clone, Copy, Debug)]
pub struct RingArgs {
    /// Bytes of ring buffer between kernel and vmaudit
    #[arg(long, value_name = "N", default_value_t = sample::RING_BYTES, hide_short_help = true)]
    pub ring_bytes: u32,

    /// Bytes of the second ring, for calls without stack while the first is full
    #[arg(long, value_name = "N", default_value_t = sample::SPILL_BYTES, hide_short_help = true)]
    pub spill_bytes: u32,
}
