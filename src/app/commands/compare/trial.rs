//! One run: `vmaudit run -f json` in a process of its own, and the end of all that it started.

use super::plan::Plan;
use super::printed;
use crate::app::error::AppError;
use crate::cli::{Aslr, CompareArgs};
use crate::compare::output::Output;
use crate::launch::{Left, Supervisor, Waited, secure};
use crate::report::Report;
use crate::session::SessionError;
use crate::sys::untrusted_open::{Believed, is_out_of_reach};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a command may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(3);
/// Lines of a failed command's own words.
const LAST_WORDS: usize = 3;

/// How a run ended.
pub enum Ended {
    /// `complaint`: the last words of a command that failed.
    Report {
        report: Box<Report>,
        load_code: Option<i32>,
        complaint: Option<String>,
    },
    /// There is no report.
    Failed {
        code: i32,
        message: String,
    },
    Interrupted(Signal),
}

pub struct Done {
    pub ended: Ended,
    /// What the command printed, where it came to its own end.
    pub output: Option<Output>,
    /// What vmaudit said meanwhile.
    pub notes: Vec<String>,
}

/// How runs are started; holds a folder for their reports while it lives.
pub struct Trial<'a> {
    args: &'a CompareArgs,
    folder: PathBuf,
}

/// What ends a run, if the command does not.
pub fn ended_by(args: &CompareArgs) -> Option<String> {
    match (&args.load, args.duration) {
        (Some(_), _) => Some("load".to_owned()),
        (None, Some(_)) => Some("duration".to_owned()),
        (None, None) => None,
    }
}

impl Trial<'_> {
    pub fn new(args: &CompareArgs) -> Result<Trial<'_>, AppError> {
        let template = std::env::temp_dir().join("vmaudit-compare-XXXXXX");
        let folder = nix::unistd::mkdtemp(&template)
            .map_err(|errno| AppError::Write { path: template, source: errno.into() })?;
        let trial = Trial { args, folder };
        // Others could put their own in its place otherwise, and links in that.
        fs::canonicalize(&trial.folder)
            .and_then(|folder| is_out_of_reach(&folder, &Believed::user()))
            .map_err(|source| AppError::Temporary { path: trial.folder.clone(), source })?;
        Ok(trial)
    }

    /// Runs the command once.
    pub fn run(&self, supervisor: &Supervisor, plan: &Plan) -> Result<Done, AppError> {
        let (report, said) = (self.folder.join("report.json"), self.folder.join("stderr"));
        remove(&report)?;
        let at = |path: &PathBuf| {
            let path = path.clone();
            move |source| AppError::Write { path, source }
        };
        let mut command = Command::new("/proc/self/exe");
        command.arg0("vmaudit").args(self.options()).arg("--report").arg(&report).args(&plan.options);
        command.arg("--").args(&self.args.command).args(&plan.args).stdin(Stdio::null());
        command.env_clear().envs(secure::environment());
        let starting = |source| SessionError::System { operation: "starting vmaudit run", source };
        let mut reader = None;
        if !self.args.show_output {
            let (print_to, own) = printed::reader().map_err(starting)?;
            command.stdout(print_to).stderr(File::create(&said).map_err(at(&said))?);
            reader = Some(own);
        }
        let child = supervisor.spawn(&mut command).map_err(starting)?;
        // it holds the writing end
        drop(command);
        let waited = supervisor.wait(child)?;
        let Left { names: left, remaining } = supervisor.end_all(GRACE)?;
        let words = if self.args.show_output { Vec::new() } else { fs::read(&said).map_err(at(&said))? };
        let (mut notes, own) = sort_words(&String::from_utf8_lossy(&words));
        if !remaining.is_empty() {
            notes.push(format!("not ended by SIGKILL in time, and left: {}", remaining.join(", ")));
        }
        if !left.is_empty() && ended_by(self.args).is_none() && !matches!(waited, Waited::Interrupted(_)) {
            notes.push(format!("the command left {} running: ended", left.join(", ")));
        }
        // what one prints that was ended depends on the time
        let output = match (reader, ended_by(self.args)) {
            (Some(reader), None) => reader.output(GRACE),
            _ => None,
        };
        let code = match waited {
            Waited::Exited(code) => code,
            Waited::Killed(signal) => 128 + signal as i32,
            Waited::Interrupted(signal) => {
                return Ok(Done { ended: Ended::Interrupted(signal), output: None, notes });
            }
        };
        let ended = match read_report(&report)? {
            Some(report) => {
                let running =
                    report.processes.first().is_some_and(|p| p.exit_code.is_none() && p.signal.is_none());
                let load_code = (running && self.args.load.is_some()).then_some(code);
                let complaint = Some(own).filter(|own| code != 0 && !own.is_empty());
                Ended::Report { report: Box::new(report), load_code, complaint }
            }
            None => {
                let mut message = notes.join("; ");
                if message.is_empty() {
                    message = format!("vmaudit run ended with {code} and no report {own}");
                }
                Ended::Failed { code, message: message.trim_end().to_owned() }
            }
        };
        Ok(Done { ended, output, notes })
    }

    fn options(&self) -> Vec<OsString> {
        let args = self.args;
        let mut options: Vec<OsString> = vec!["run".into(), "--format=json".into(), "--min-virt=0".into()];
        let mut flag = |set: bool, name: &str| options.extend(set.then(|| OsString::from(name)));
        flag(args.aslr == Aslr::Off, "--aslr=off");
        flag(args.no_follow_forks, "--no-follow-forks");
        flag(args.start.as_root, "--as-root");
        flag(args.start.no_exit_hold, "--no-exit-hold");
        options.extend(args.duration.map(|seconds| format!("--duration={seconds}").into()));
        if let Some(script) = &args.load {
            let mut load = OsString::from("--load=");
            load.push(script);
            options.push(load);
        }
        if let Some(folder) = &args.rules {
            options.extend([OsString::from("--rules"), folder.into()]);
        }
        options
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn remove(path: &PathBuf) -> Result<(), AppError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(AppError::Write { path: path.clone(), source })
        }
        _ => Ok(()),
    }
}

/// None: nothing was written.
fn read_report(path: &PathBuf) -> Result<Option<Report>, AppError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(Report::from_json(&bytes)?.with_stand_ins())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(AppError::Write { path: path.clone(), source }),
    }
}

/// What vmaudit said (without its name), and the last words of the command.
fn sort_words(text: &str) -> (Vec<String>, String) {
    let (mut notes, mut own) = (Vec::new(), Vec::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match line.strip_prefix("vmaudit: ") {
            Some(note) => notes.push(note.to_owned()),
            None => own.push(line.trim()),
        }
    }
    let last = own.get(own.len().saturating_sub(LAST_WORDS)..).unwrap_or_default();
    (notes, last.join(" / "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vmaudits_words_and_the_commands() {
        let (notes, own) = sort_words("a\nvmaudit: b\n\nc\nd\n e\n");
        assert_eq!(notes, ["b"]);
        assert_eq!(own, "c / d / e");
        assert_eq!(sort_words(""), (vec![], String::new()));
    }
}
