//! `cli::top`.

use clap::Parser;
use vmaudit::cli::Cli;

fn accepted(words: &[&str]) -> bool {
    Cli::try_parse_from(["vmaudit", "top"].iter().chain(words)).is_ok()
}

#[test]
fn what_goes_together() {
    for good in [&[][..], &["-b", "-n", "1"], &["-p", "1", "-t"], &["--cgroup", "/x", "-t", "-i", "0.5"]] {
        assert!(accepted(good), "{good:?}");
    }
    for bad in [&["-t"][..], &["-n", "0"], &["-i", "0"], &["-s", "size"], &["-p", "0"], &["--backend", "bpf"]]
    {
        assert!(!accepted(bad), "{bad:?}");
    }
}
