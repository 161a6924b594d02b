//! What the BPF programs copy, and the sizes of the ring buffers: of all commands that trace.

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
    /// Bytes of ring buffer between kernel and vmaudit that stacks may fill
    #[arg(long, value_name = "N", default_value_t = sample::RING_BYTES, hide_short_help = true)]
    pub ring_bytes: u32,

    /// Bytes of ring buffer for calls without stack when stacks have filled the rest
    #[arg(long, value_name = "N", default_value_t = sample::SPILL_BYTES, hide_short_help = true)]
    pub spill_bytes: u32,

    /// Bytes of memory for what was read of the ring buffer and waits for vmaudit
    #[arg(long, value_name = "N", default_value_t = sample::QUEUE_BYTES, hide_short_help = true)]
    pub queue_bytes: u32,
}
