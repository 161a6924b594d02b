//! `vmaudit explain`.

use super::PlainFormat;
use super::events::address;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(
    override_usage = "vmaudit explain [OPTIONS] REC ADDR\n       vmaudit explain [OPTIONS] -p PID ADDR",
    after_help = "EXIT STATUS\n  0 when the address is or was mapped, 1 when it never was, 125 if vmaudit itself failed."
)]
pub struct ExplainArgs {
    /// With REC: the process of the recording that is meant (without: the one that was started).
    /// Without REC: a running process
    #[arg(short, long, value_name = "PID")]
    pub pid: Option<i32>,

    /// How to write the explanation
    #[arg(short, long, value_enum, default_value_t = PlainFormat::Text, value_name = "FORMAT")]
    pub format: PlainFormat,

    /// Leave the stacks out
    #[arg(long)]
    pub no_stacks: bool,

    /// A recording (`vmaudit run -o REC`), and an address in hexadecimal, with or without 0x
    #[arg(required = true, num_args = 1..=2, value_names = ["REC", "ADDR"])]
    pub what: Vec<OsString>,
}

impl ExplainArgs {
    /// The recording, if there is one, and the address.
    ///
    /// # Errors
    /// In words, when the command line cannot be used.
    pub fn source(&self) -> Result<(Option<PathBuf>, u64), String> {
        let (recording, text) = match self.what.as_slice() {
            [text] if self.pid.is_none() => {
                let text = text.to_string_lossy();
                return Err(match address(&text) {
                    Ok(_) => format!(
                        "which address of what? Give a recording and an address (explain REC {text}), or a \
                         process and an address (explain -p PID {text})"
                    ),
                    Err(_) => format!("which address? Give one in hexadecimal: explain {text} ADDR"),
                });
            }
            [text] => (None, text),
            [recording, text, ..] => (Some(PathBuf::from(recording)), text),
            [] => return Err("an address is missing".to_owned()),
        };
        let text = text.to_str().ok_or_else(|| "the address is not text".to_owned())?;
        Ok((recording, address(text)?))
    }
}
