//! `vmaudit heap` with programs that wait for orders on their standard input and answer with a line.

use super::report::{list, number};
use super::{Guard, vmaudit};
use serde_json::{Deserializer, StreamDeserializer, Value, de::IoRead};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

/// A program and its answers.
pub struct Obedient {
    pub program: Guard,
    pub answers: Lines<BufReader<ChildStdout>>,
}

impl Obedient {
    pub fn start(path: &Path, arguments: &[&str]) -> Obedient {
        Obedient::spawn(Command::new(path).args(arguments))
    }

    pub fn spawn(command: &mut Command) -> Obedient {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut program = Guard(child);
        let answers = BufReader::new(program.0.stdout.take().expect("piped")).lines();
        Obedient { program, answers }
    }

    pub fn answer(&mut self) -> String {
        self.answers.next().expect("a line").expect("text")
    }

    /// In one piece: the program reads lines.
    pub fn order(&mut self, line: &str) -> String {
        let mut input = self.program.0.stdin.as_ref().expect("piped");
        input.write_all(format!("{line}\n").as_bytes()).expect("it reads");
        self.answer()
    }
}

/// vmaudit watching a running process, and the reports that it prints.
pub struct Watching {
    vmaudit: Guard,
    reports: StreamDeserializer<'static, IoRead<BufReader<ChildStdout>>, Value>,
}

impl Watching {
    /// Returns once allocations are seen.
    pub fn of(pid: u32, options: &[&str]) -> Watching {
        Watching::by(&mut Command::new(vmaudit()), pid, options)
    }

    /// The same, by this vmaudit.
    pub fn by(vmaudit: &mut Command, pid: u32, options: &[&str]) -> Watching {
        Watching::target(vmaudit.args(["heap", "-p", &pid.to_string()]).args(options))
    }

    /// Whatever `vmaudit heap …` watches.
    pub fn target(heap: &mut Command) -> Watching {
        let command = heap.args(["-f", "json"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("vmaudit starts");
        let mut vmaudit = Guard(child);
        let said = BufReader::new(vmaudit.0.stderr.take().expect("piped")).lines();
        let ready = |line: &String| line.contains("Ctrl-C ends watching");
        said.map(|line| line.expect("text")).find(ready).expect("it watches");
        let reports = BufReader::new(vmaudit.0.stdout.take().expect("piped"));
        Watching { vmaudit, reports: Deserializer::from_reader(reports).into_iter() }
    }

    /// The next one; with --interval they come by themselves.
    pub fn next(&mut self) -> Value {
        self.reports.next().expect("a report").expect("JSON")
    }

    /// The report of an interval that began after now.
    pub fn later(&mut self) -> Value {
        self.next();
        self.next()
    }

    /// Without a report, and without a word to the process.
    pub fn kill(mut self) {
        self.vmaudit.signal(libc::SIGKILL);
        self.vmaudit.0.wait().expect("waits");
    }

    /// The last one.
    pub fn stop(mut self) -> Value {
        self.vmaudit.signal(libc::SIGINT);
        let last = self.reports.by_ref().last().expect("a report").expect("JSON");
        let status = self.vmaudit.0.wait().expect("waits");
        assert_eq!(status.code(), Some(0));
        assert_sums(&last);
        last
    }
}

/// Rows add up to what is shown, and that and what is left out to the total.
pub fn assert_sums(report: &Value) {
    for process in list(report, "processes") {
        for (unit, total) in [("bytes", "outstanding_bytes"), ("blocks", "outstanding_blocks")] {
            let rows: u64 = list(process, "rows").iter().map(|row| number(row, unit)).sum();
            assert_eq!(rows, number(&process["shown"], unit));
            let all = rows + number(&process["left_out"], unit);
            assert_eq!(all, number(&process["totals"], total));
        }
    }
}

pub fn first(report: &Value) -> &Value {
    list(report, "processes").first().expect("a process")
}

/// The frames of a row, innermost first.
pub fn frames<'a>(report: &'a Value, row: &Value) -> &'a [Value] {
    row["stack"].as_u64().map_or(&[], |stack| list(&report["stacks"][stack as usize], "frames"))
}

/// The rows of the first process whose stack has this function.
pub fn rows_of<'a>(report: &'a Value, symbol: &str) -> Vec<&'a Value> {
    let has = |row: &&Value| frames(report, row).iter().any(|frame| frame["symbol"] == symbol);
    list(first(report), "rows").iter().filter(has).collect()
}

pub fn sum(rows: &[&Value], unit: &str) -> u64 {
    rows.iter().map(|row| number(row, unit)).sum()
}
