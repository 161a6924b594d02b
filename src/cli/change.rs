//! What is different for the command: of `run` and `compare`.

use super::quantity;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// How it is started.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct StartArgs {
    /// Under sudo, run the command as root instead of as the invoking user
    #[arg(long)]
    pub as_root: bool,

    /// Do not hold processes at their exit: for programs with a seccomp listener of their own
    #[arg(long)]
    pub no_exit_hold: bool,
}

#[derive(Args, Clone, Debug, Default)]
pub struct ChangeArgs {
    /// Set an environment variable of the command (repeatable)
    #[arg(long, value_name = "K=V", value_parser = OsStringValueParser::new().try_map(assignment))]
    pub env: Vec<(OsString, OsString)>,

    /// Leave a variable out of the command's environment (repeatable)
    #[arg(long, value_name = "K", value_parser = OsStringValueParser::new().try_map(name))]
    pub unset_env: Vec<OsString>,

    /// Limit the command's stacks (`ulimit -s`): the size that glibc gives to threads' stacks
    #[arg(long, value_name = "BYTES", value_parser = quantity::stack)]
    pub stack_limit: Option<u64>,
}

impl ChangeArgs {
    /// What to set, and what to leave out.
    pub fn environment(&self) -> Vec<(OsString, Option<OsString>)> {
        let unset = self.unset_env.iter().map(|name| (name.clone(), None));
        let set = self.env.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
        unset.chain(set).collect()
    }
}

fn assignment(text: OsString) -> Result<(OsString, OsString), String> {
    let bytes = text.as_bytes();
    match bytes.iter().position(|&b| b == b'=') {
        Some(0) => Err("the name before = is empty".to_owned()),
        Some(at) => Ok((
            OsString::from_vec(bytes[..at].to_vec()),
            OsString::from_vec(bytes.get(at + 1..).unwrap_or_default().to_vec()),
        )),
        None => Err("has to be NAME=VALUE (--unset-env NAME takes a variable away)".to_owned()),
    }
}

fn name(text: OsString) -> Result<OsString, String> {
    match text.as_bytes() {
        [] => Err("the name is empty".to_owned()),
        bytes if bytes.contains(&b'=') => Err("a variable's name holds no =".to_owned()),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_are_names_with_values() {
        let pair = |a: &str, b: &str| Ok((OsString::from(a), OsString::from(b)));
        assert_eq!(assignment("A=1=2".into()), pair("A", "1=2"));
        assert_eq!(assignment("A=".into()), pair("A", ""));
        assert!(assignment("=1".into()).is_err());
        assert!(assignment("A".into()).is_err());
        assert!(name("A=1".into()).is_err());
    }
}
