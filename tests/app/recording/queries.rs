//! The queries of docs/recording.md, as written there, on a recording of redis-server under load; and its
//! tables compared with those of a recording.

use crate::support::redis::{REDIS, free_port, load_and_stop, redis_command, until_ready};
use crate::support::{Guard, manifest_dir, run_command, skip, skip_without, skip_without_bpf};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

fn document() -> String {
    std::fs::read_to_string(manifest_dir().join("docs/recording.md")).expect("docs/recording.md")
}

/// The blocks between ```sql and ```.
fn queries(document: &str) -> Vec<String> {
    let blocks = document.split("```sql\n").skip(1);
    blocks.map(|block| block.split("```").next().expect("an end").to_owned()).collect()
}

/// A recording with a timeline, made once.
fn recording() -> Option<&'static Path> {
    static MADE: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        if skip_without_bpf("recording_queries") || skip_without("recording_queries", REDIS) {
            return None;
        }
        if Command::new("sqlite3").arg("--version").stdout(Stdio::null()).status().is_err() {
            skip("recording_queries", "no sqlite3");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (live, recording) = (folder.path().join("live.json"), folder.path().join("rec"));
        let port = free_port();
        let command = redis_command(port, folder.path());
        let options = ["--interval", "0.05", "-o", recording.to_str().expect("a plain path")];
        let mut run = run_command(&live, &options, &command);
        let run = run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = Guard(run.spawn().expect("vmaudit starts"));
        until_ready(&mut server);
        load_and_stop(port);
        let output = server.finish().expect("output");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        Some((folder, recording))
    });
    made.as_ref().map(|(_, path)| path.as_path())
}

/// What `sqlite3` prints, which has to be without errors.
fn sqlite3(recording: &Path, script: &str) -> Vec<String> {
    let mut shell = Command::new("sqlite3");
    shell.args(["-batch", "-bail", "-readonly"]).arg(recording);
    let child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("sqlite3 starts");
    child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("output");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}\n{script}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn each_query_of_the_document_gives_rows() {
    let Some(recording) = recording() else { return };
    let unmapped = sqlite3(recording, "SELECT addr FROM call WHERE op = 'munmap' ORDER BY id LIMIT 1;");
    let queries = queries(&document());
    assert_eq!(queries.len(), 5);
    let mut queries_with_address = 0;
    for query in queries {
        let lines = query.lines().map(|line| match line.strip_prefix(".parameter set :x ") {
            Some(_) => {
                queries_with_address += 1;
                format!(".parameter set :x {}\n", unmapped[0])
            }
            None => format!("{line}\n"),
        });
        let rows = sqlite3(recording, &lines.collect::<String>());
        assert!(!rows.is_empty(), "no rows: {query}");
        eprintln!("{} rows, the first: {}", rows.len(), rows[0].chars().take(100).collect::<String>());
    }
    assert_eq!(queries_with_address, 1);
}

/// The numbers of the views are those of the report.
#[test]
fn views_agree_with_the_report() {
    let Some(recording) = recording() else { return };
    let one = |sql: &str| sqlite3(recording, sql).first().cloned().unwrap_or_default();
    let of_report =
        |what: &str| one(&format!("SELECT json_extract(json, '$.processes[0].{what}') FROM report;"));
    let last = "SELECT max(t) FROM timeline";
    assert_eq!(one(&format!("SELECT sum(virt) FROM timeline WHERE t = ({last});")), of_report("totals.virt"));
    let newest = of_report("timeline[#-1].t_ns").parse::<f64>().expect("ns") / 1e9;
    let newest_of_view = one(&format!("{last};")).parse::<f64>().expect("seconds");
    assert!((newest - newest_of_view).abs() < 2e-6, "{newest} {newest_of_view}");
    assert_eq!(
        one("SELECT sum(size) FROM map WHERE kind = 'look' AND name IS NOT '[vsyscall]';"),
        of_report("totals.virt")
    );
    assert_eq!(one("SELECT count(*) FROM call;"), one("SELECT count(*) FROM event;"), "no event is left out");
    assert_eq!(
        one("SELECT count(*) FROM stack_name WHERE functions LIKE '%main%';").parse::<u64>().map(|n| n > 0),
        Ok(true)
    );
    // Addresses as text are those of the numbers.
    assert_eq!(
        one("SELECT count(*) FROM call JOIN event e USING (id) WHERE call.addr <> printf('0x%x', e.addr);"),
        "0"
    );
}

/// Every table and view with every column, and none besides.
#[test]
fn the_document_names_every_column() {
    let Some(recording) = recording() else { return };
    let document = document();
    let tables = sqlite3(recording, "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view');");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let documented: BTreeSet<&str> = rows.clone().map(|(name, _)| name).collect();
    assert_eq!(documented, tables.iter().map(String::as_str).collect());
    for (table, text) in rows {
        let columns = sqlite3(recording, &format!("SELECT name FROM pragma_table_info('{table}');"));
        for column in columns.iter().filter(|column| *column != "sum") {
            assert!(text.contains(&format!("`{column}`")), "{table}.{column} is not in docs/recording.md");
        }
    }
    let keys = sqlite3(recording, "SELECT key FROM meta;");
    for key in keys {
        assert!(document.contains(&format!("`{key}`")), "{key} of meta is not in docs/recording.md");
    }
}
