//! `--touch`, of `run` and `attach`.

use clap::Args;

#[derive(Args, Clone, Copy, Debug)]
pub struct TouchArgs {
    /// Also report which stack touched first what another one reserved (records page faults)
    #[arg(long)]
    pub touch: bool,

    /// Page faults that each CPU records a second before it samples
    #[arg(long, value_name = "N", default_value_t = 32_768, hide_short_help = true)]
    pub touch_budget: u32,

    /// Bytes of the ring of page faults
    #[arg(long, value_name = "N", default_value_t = 32 << 20, hide_short_help = true)]
    pub touch_ring_bytes: u32,
}
