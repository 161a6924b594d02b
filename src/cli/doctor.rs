//! `vmaudit doctor`.

use super::PlainFormat;
use clap::Args;

#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = PlainFormat::Text, value_name = "FORMAT")]
    pub format: PlainFormat,

    /// Show the verifier's last lines of each BPF program that the kernel refuses
    #[arg(short, long)]
    pub verbose: bool,
}
