//! What to do when a backend cannot work: the error, and the advice of `vmaudit doctor`.

use crate::capture::CaptureError;
use crate::capture::refusal::errno_in;
use crate::doctor::{Advice, FailedStep, Rung, RungFailure, advice_for};
use crate::model::Privileges;
use crate::probe;
use crate::rights::viewer;
use crate::session::error::SessionError;

/// What ends each such error.
pub const SEE_DOCTOR: &str = "(`vmaudit doctor` shows all that can be tried)";

/// The reason and the commands that help, in as many lines as it takes.
pub fn remedy(rung: Rung, failure: &RungFailure, privileges: &Privileges) -> String {
    let advice = advice_for(rung, failure, privileges);
    let mut text = advice.why;
    let width = advice.commands.iter().map(|each| each.when.chars().count()).max().unwrap_or(0);
    for command in &advice.commands {
        text += &format!("\n  {:<width$}   {}", command.when, command.command);
    }
    text
}

/// The same in half a line: `CAP_BPF … are missing: sudo vmaudit …`.
pub fn hint(advice: &Advice) -> String {
    match advice.commands.first() {
        Some(command) => format!("{}: {}", advice.why, command.command),
        None => advice.why.clone(),
    }
}

/// What went wrong, with its number.
pub fn failure(error: &SessionError) -> RungFailure {
    let text = error.to_string();
    let refusal = match error {
        SessionError::Capture(CaptureError::Silenced { .. }) => {
            return RungFailure { errno: Some(libc::EBUSY), text, ..RungFailure::default() };
        }
        SessionError::Capture(error) => error.refusal().cloned(),
        _ => None,
    };
    let errno = refusal.as_ref().and_then(|refusal| refusal.errno).or_else(|| errno_in(&text));
    RungFailure { errno, text, step: step_of(error), refusal }
}

fn step_of(error: &SessionError) -> FailedStep {
    match error {
        SessionError::System { operation: super::FORKING, .. }
        | SessionError::Capture(CaptureError::Process(_)) => FailedStep::NewProcess,
        SessionError::System { operation: super::INSTALLING, .. } => FailedStep::Listener,
        SessionError::System { operation: super::READING_PLACE, .. } => FailedStep::ProcFile,
        _ => FailedStep::Other,
    }
}

/// With `-v`: the verifier's last lines.
pub fn verifier_lines(failure: &RungFailure) -> String {
    let lines = failure.refusal.iter().flat_map(|refusal| &refusal.verifier);
    lines.map(|line| format!("\n  | {line}")).collect()
}

/// For commands that rest on BPF alone: what was refused, why, and what helps.
pub fn explained(error: CaptureError, verbose: bool) -> SessionError {
    if error.refusal().is_none() {
        return error.into();
    }
    let failure = failure(&error.into());
    let seen = if verbose { verifier_lines(&failure) } else { String::new() };
    let remedy = remedy(Rung::Bpf, &failure, &probe::privileges());
    SessionError::Backend(format!("{}\n{remedy}{seen}\n{SEE_DOCTOR}", failure.text))
}

/// One sentence for the user who may not read a process.
pub fn may_not_be_read() -> String {
    if nix::unistd::geteuid().is_root() {
        return "even root is refused here: CAP_SYS_PTRACE is missing (a container without --cap-add SYS_PTRACE), \
                or a security module forbids it"
            .to_owned();
    }
    let words: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words = words.join(" ");
    if let Some(viewer) = viewer() {
        let uid = viewer.uid;
        return format!(
            "the capabilities of vmaudit's file are for tracing: it snapshots into no process that uid {uid} could not \
             snapshot into himself (another user's, one with privileges of its own, or one that forbids it by prctl \
             PR_SET_DUMPABLE): try sudo vmaudit {words}"
        );
    }
    format!(
        "another user's process, or one that forbids it (prctl PR_SET_DUMPABLE), takes root or CAP_SYS_PTRACE: \
         try sudo vmaudit {words}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Capabilities;

    fn failed_with(errno: i32) -> RungFailure {
        failure(&CaptureError::Load(libbpf_rs::Error::from_raw_os_error(errno)).into())
    }

    fn user() -> Privileges {
        Privileges {
            uid: 1000,
            btf: true,
            first_user_namespace: true,
            first_pid_namespace: true,
            effective: Capabilities(0),
            exe: "/usr/bin/vmaudit".to_owned(),
            ..Privileges::default()
        }
    }

    #[test]
    fn limits_are_distinguished_from_privileges() {
        let text = |errno| remedy(Rung::Bpf, &failed_with(errno), &user());
        assert!(text(libc::EMFILE).contains("ulimit -n"));
        assert!(text(libc::ENOMEM).contains("--ring-bytes"));
        let refused = text(libc::EPERM);
        assert!(refused.starts_with("CAP_BPF and CAP_PERFMON are missing\n"), "{refused}");
        assert!(refused.contains("sudo setcap cap_bpf,cap_perfmon+ep /usr/bin/vmaudit"), "{refused}");
    }
}
