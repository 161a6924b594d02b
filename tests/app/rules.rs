//! `vmaudit rules`, and rules of a user's own: where they are read from, and what becomes of bad ones.

use crate::support::report::list;
use crate::support::{AuditReport, vmaudit};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const OWN: &str = r#"
[[rule]]
id = "own.cache"
what = "the cache"
why = "it is mapped by a test"
source = "tests/app/rules.rs"
proven = false
files = ["/opt/cache/*"]
"#;
const SMAPS: &str = "\
7f0000000000-7f0000100000 r--s 00000000 08:01 7 /opt/cache/one
Size:               1024 kB
Rss:                   4 kB
";

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is no text in {value}"))
}

/// With nothing of the machine's own.
fn command(home: &Path) -> Command {
    let mut command = Command::new(vmaudit());
    command.env_remove("XDG_CONFIG_HOME").env("HOME", home);
    command
}

fn output(command: &mut Command) -> Output {
    command.output().expect("vmaudit starts")
}

fn standard_output(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Exit status 2, nothing on standard output.
fn refusal(output: Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn rules_are_read_from_three_folders_and_the_first_one_counts() {
    let home = tempfile::tempdir().expect("a folder");
    let smaps = home.path().join("smaps");
    fs::write(&smaps, SMAPS).expect("written");
    let snapshot = |configure: &dyn Fn(&mut Command)| {
        let mut command = command(home.path());
        command.args(["snapshot", "-f", "json", "--smaps"]).arg(&smaps);
        configure(&mut command);
        let report = AuditReport::parse(standard_output(output(&mut command)).as_bytes());
        let findings = list(report.first(), "findings");
        assert_eq!(findings[0]["rule"], list(report.first(), "regions")[0]["rule"]);
        assert_eq!(text(&findings[0], "category"), "file");
        text(&findings[0], "title").to_owned()
    };
    assert_eq!(snapshot(&|_| {}), "mapped file");
    let put = |folder: &Path, what: &str| {
        fs::create_dir_all(folder).expect("made");
        fs::write(folder.join("own.toml"), OWN.replace("the cache", what)).expect("written");
    };
    put(&home.path().join(".config/vmaudit/rules"), "of the home");
    assert_eq!(snapshot(&|_| {}), "of the home");
    let config = home.path().join("config");
    put(&config.join("vmaudit/rules"), "of XDG");
    assert_eq!(snapshot(&|command| _ = command.env("XDG_CONFIG_HOME", &config)), "of XDG");
    let named = home.path().join("named");
    put(&named, "of the folder");
    assert_eq!(snapshot(&|command| _ = command.arg("--rules").arg(&named)), "of the folder");
    let listed = standard_output(output(command(home.path()).args(["rules", "--rules"]).arg(&named)));
    assert!(listed.starts_with("own.cache  of the folder\n"), "{listed}");
    assert_eq!(listed.matches("own.cache ").count(), 1, "{listed}");
    assert!(listed.contains("built-in/php.toml:1"), "{listed}");
}

#[test]
fn a_bad_rule_ends_vmaudit_before_it_starts_anything() {
    let home = tempfile::tempdir().expect("a folder");
    let folder = home.path().join("rules");
    fs::create_dir(&folder).expect("made");
    let started = home.path().join("started");
    let run = || {
        let mut command = command(home.path());
        command.args(["run", "--rules"]).arg(&folder).args(["--", "touch"]).arg(&started);
        refusal(output(&mut command))
    };
    let file = folder.join("own.toml");
    fs::write(&file, OWN.replace("proven = false", "proven = maybe")).expect("written");
    let said = run();
    assert!(said.contains(&format!("rules: {}:7: ", file.display())), "{said}");
    fs::write(&file, OWN).expect("written");
    let other = folder.join("other.toml");
    fs::write(&other, OWN).expect("written");
    let said = run();
    assert!(said.contains("own.toml:2: id \"own.cache\" is that of the rule in "), "{said}");
    fs::remove_file(&other).expect("removed");
    // A pipe without a writer.
    nix::unistd::mkfifo(&other, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let said = run();
    assert!(said.contains("not a regular file"), "{said}");
    fs::remove_dir_all(&folder).expect("removed");
    let said = run();
    assert!(said.contains("the folder cannot be read: No such file"), "{said}");
    assert!(!started.exists(), "the command was started");
}

#[test]
fn rules_are_tested_against_a_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let (rules, report) = (folder.path().join("own.toml"), folder.path().join("report.json"));
    fs::write(&rules, OWN).expect("written");
    let file = folder.path().join("smaps");
    fs::write(&file, SMAPS).expect("written");
    let mut snapshot = command(folder.path());
    snapshot.args(["snapshot", "-f", "json", "--smaps"]).arg(&file).arg("--report").arg(&report);
    standard_output(output(&mut snapshot));
    let mut test = command(folder.path());
    test.args(["rules", "--test"]).arg(&report).arg("--rules").arg(folder.path());
    let said = standard_output(output(&mut test));
    assert!(
        said.contains("    own.cache  ") && said.contains(" 1 region     1.0 MiB VIRT       4 KiB RSS\n"),
        "{said}"
    );
    assert!(said.contains("at 0x7f0000000000-0x7f0000100000"), "{said}");
    test.args(["-f", "json"]);
    let json: Value = serde_json::from_str(&standard_output(output(&mut test))).expect("JSON");
    let rule = &json["processes"][0]["rules"][0];
    assert_eq!((rule["id"].as_str(), rule["claims"].as_bool()), (Some("own.cache"), Some(true)));
}
