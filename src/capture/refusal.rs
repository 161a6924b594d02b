//! From what libbpf says while it loads an object to what the kernel refused of it.
//!
//! libbpf has its reasons printed, the verifier's log among them, and returns a number. What it prints is
//! kept here (or also shown, with VMAUDIT_LIBBPF_LOG in the environment).

use super::CaptureError;
use crate::model::trial::refusal::{Missing, Part, Refusal};
use libbpf_rs::{PrintLevel, set_print};
use std::cell::RefCell;
use std::io::Write;

/// Lines of the verifier that are kept: its verdict, and the instructions that led to it.
const VERIFIER_LINES: usize = 10;
/// A line of it may list every register.
const LONGEST_LINE: usize = 300;
/// Of one message: a log may have megabytes, and its end is what counts.
const LONGEST_MESSAGE: usize = 64 << 10;
const MOST_MESSAGES: usize = 64;

thread_local! {
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Before an object is opened: libbpf's words are kept, and shown only on request.
pub(super) fn listen() {
    match std::env::var_os("VMAUDIT_LIBBPF_LOG") {
        None => set_print(Some((PrintLevel::Warn, keep))),
        Some(_) => set_print(Some((PrintLevel::Info, show))),
    };
    SAID.take();
}

fn keep(_: PrintLevel, message: String) {
    let cut = message.len().saturating_sub(LONGEST_MESSAGE);
    let cut = (cut..message.len()).find(|&at| message.is_char_boundary(at)).unwrap_or(0);
    // Its first line names the program.
    let head = message.lines().next().filter(|_| cut > 0).map(|line| format!("{line}\n")).unwrap_or_default();
    let message = head + message.get(cut..).unwrap_or_default();
    SAID.with_borrow_mut(|said| {
        if said.len() == MOST_MESSAGES {
            said.remove(0);
        }
        said.push(message);
    });
}

fn show(level: PrintLevel, message: String) {
    let _ = std::io::stderr().write_all(message.as_bytes());
    if level == PrintLevel::Warn {
        keep(level, message);
    }
}

/// The error of loading `object`, with what libbpf said since [`listen`].
pub(super) fn refused(object: &str, error: &libbpf_rs::Error) -> CaptureError {
    let errno = errno_in(&format!("{error:#}"));
    CaptureError::Refused(Box::new(parse(object, errno, &SAID.take())))
}

/// libbpf-rs keeps the number to itself and prints it as std does.
pub fn errno_in(text: &str) -> Option<i32> {
    let (_, number) = text.rsplit_once("(os error ")?;
    number.split(')').next()?.parse().ok()
}

/// `said`: each of libbpf's messages, in order.
fn parse(object: &str, errno: Option<i32>, said: &[String]) -> Refusal {
    let mut refusal = Refusal { object: object.to_owned(), errno, ..Refusal::default() };
    for message in said {
        let message = message.strip_prefix("libbpf: ").unwrap_or(message);
        if let Some((name, words)) = quoted(message, "prog '") {
            // The first that fails ends the loading; relocations of others may have been reported before.
            refusal.part = Part::Program(name.to_owned());
            of_program(words, &mut refusal);
        } else if let Some((name, words)) = quoted(message, "map '") {
            if words.starts_with("failed to create") {
                refusal.part = Part::Map(name.to_owned());
            }
        } else if let Some((name, _)) = quoted(message, "extern (func ksym) '") {
            refusal.missing = Some(Missing::Kfunc(name.to_owned()));
        } else if let Some((name, _)) = quoted(message, "extern (var ksym) '") {
            refusal.missing = Some(Missing::Type(name.to_owned()));
        } else if message.contains("bpf_object__probe_loading") {
            refusal.part = Part::Everything;
        } else if message.contains("failed to find valid kernel BTF")
            || message.contains("vmlinux BTF is not found")
        {
            refusal.missing = Some(Missing::Btf);
        }
    }
    refusal
}

/// `'NAME': words`, behind what is before the quote.
fn quoted<'a>(message: &'a str, before: &str) -> Option<(&'a str, &'a str)> {
    let (name, words) = message.strip_prefix(before)?.split_once('\'')?;
    Some((name, words.trim_start_matches(':').trim_start()))
}

fn of_program(words: &str, refusal: &mut Refusal) {
    if let Some((_, log)) =
        words.split_once("-- BEGIN PROG LOAD LOG --\n").or_else(|| words.split_once(LOG_HEAD))
    {
        let log = log.split("-- END PROG LOAD LOG --").next().unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.get(lines.len().saturating_sub(VERIFIER_LINES)..).unwrap_or_default();
        refusal.verifier = last.iter().map(|line| line.chars().take(LONGEST_LINE).collect()).collect();
        // An earlier word of libbpf's says more.
        refusal.missing =
            refusal.missing.take().or_else(|| lines.iter().rev().find_map(|line| missing(line)));
    } else if let Some((_, rest)) = words.split_once("failed to find kernel BTF type ID of '") {
        // The name of the function or tracepoint that it is for.
        refusal.missing = rest.split('\'').next().map(|name| Missing::Target(name.to_owned()));
    }
}

/// What remains of a long message's first line.
const LOG_HEAD: &str = "-- BEGIN PROG LOAD LOG --";

/// What a line of the verifier's log says to be missing (kernel/bpf/verifier.c, and libbpf's own words for
/// instructions that it had to invalidate: fixup_verifier_log).
fn missing(line: &str) -> Option<Missing> {
    let line = line.trim();
    if let Some((name, _)) = quoted(line, "kfunc '") {
        return Some(Missing::Kfunc(name.to_owned()));
    }
    if let Some(rest) = line.strip_prefix("calling kernel function ") {
        return rest.strip_suffix(" is not allowed").map(|name| Missing::Kfunc(name.to_owned()));
    }
    for before in ["program of this type cannot use helper ", "unknown func ", "invalid func "] {
        if let Some(rest) = line.strip_prefix(before) {
            return Some(Missing::Helper(rest.split('#').next().unwrap_or(rest).to_owned()));
        }
    }
    // `failed to resolve CO-RE relocation <byte_off> [12] struct mm_struct.brk (0:1 @ offset 8)`
    let rest = line.strip_prefix("failed to resolve CO-RE relocation ")?;
    let name = rest.split("] ").nth(1)?.split(" (").next()?;
    Some(Missing::Type(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::ObjectBuilder;

    /// As libbpf 1.7 prints them, a file's lines that begin with `libbpf: ` beginning a message.
    fn messages(text: &str) -> Vec<String> {
        let mut messages: Vec<String> = Vec::new();
        for line in text.lines() {
            match messages.last_mut() {
                Some(last) if !line.starts_with("libbpf: ") => *last += &format!("{line}\n"),
                _ => messages.push(format!("{line}\n")),
            }
        }
        messages
    }

    fn parsed(object: &str, errno: i32, text: &str) -> Refusal {
        parse(object, Some(errno), &messages(text))
    }

    #[test]
    fn a_kernel_without_a_function_for_programs() {
        let text = include_str!("../../tests/fixtures/refusals/linux-6.1-kfunc.txt");
        let found = parsed("vmaudit", libc::EINVAL, text);
        assert_eq!(found.part, Part::Program("task_forked".to_owned()));
        assert_eq!(found.missing, Some(Missing::Kfunc("bpf_iter_task_vma_new".to_owned())));
        assert_eq!(found.verdict(), Some("kfunc 'bpf_iter_task_vma_new' is referenced but wasn't resolved"));
        assert_eq!(found.verifier.len(), VERIFIER_LINES);
        assert!(found.is_verdict());
        assert_eq!(
            found.to_string(),
            "the kernel refused the BPF program task_forked: Invalid argument (os error 22)"
        );
    }

    #[test]
    fn a_kernel_that_keeps_its_memory_to_itself() {
        let text = include_str!("../../tests/fixtures/refusals/linux-6.12-confidentiality.txt");
        let found = parsed("vmaudit", libc::EINVAL, text);
        assert!(matches!(found.part, Part::Program(_)), "{found:?}");
        assert_eq!(
            found.missing,
            Some(Missing::Helper("bpf_probe_read".to_owned())),
            "libbpf takes the older one"
        );
    }

    #[test]
    fn a_kernel_without_task_storage() {
        let text = include_str!("../../tests/fixtures/refusals/linux-5.10-map.txt");
        let found = parsed("probe", libc::EINVAL, text);
        assert_eq!((found.part.clone(), found.missing.clone()), (Part::Map("threads".to_owned()), None));
        assert!(!found.is_verdict());
        assert_eq!(
            found.to_string(),
            "the kernel refused the BPF map threads: Invalid argument (os error 22)"
        );
    }

    #[test]
    fn a_user_without_privileges() {
        let text = include_str!("../../tests/fixtures/refusals/no-capability.txt");
        let found = parsed("vmaudit", libc::EPERM, text);
        assert_eq!((found.part.clone(), found.is_verdict()), (Part::Everything, false));
        let text = include_str!("../../tests/fixtures/refusals/without-perfmon.txt");
        let found = parsed("vmaudit", libc::EPERM, text);
        assert_eq!(
            (found.part.clone(), found.is_verdict()),
            (Part::Program("task_forked".to_owned()), false)
        );
    }

    #[test]
    fn words_that_mean_that_something_is_missing() {
        let kfunc = |name: &str| Some(Missing::Kfunc(name.to_owned()));
        let helper = |name: &str| Some(Missing::Helper(name.to_owned()));
        for (line, expected) in [
            ("kfunc 'bpf_x' is referenced but wasn't resolved", kfunc("bpf_x")),
            ("calling kernel function bpf_x is not allowed", kfunc("bpf_x")),
            (
                "program of this type cannot use helper bpf_probe_read_kernel#113",
                helper("bpf_probe_read_kernel"),
            ),
            ("unknown func bpf_probe_read_kernel#113", helper("bpf_probe_read_kernel")),
            (
                "failed to resolve CO-RE relocation <byte_off> [12] struct mm_struct.brk (0:1 @ offset 8)",
                Some(Missing::Type("struct mm_struct.brk".to_owned())),
            ),
            ("R1 invalid mem access 'scalar'", None),
            ("calling kernel function", None),
            ("failed to resolve CO-RE relocation", None),
            ("", None),
        ] {
            assert_eq!(missing(line), expected, "{line}");
        }
        let target = "libbpf: prog 'task_renamed': failed to find kernel BTF type ID of 'task_rename': -3\n";
        assert_eq!(parsed("vmaudit", 3, target).missing, Some(Missing::Target("task_rename".to_owned())));
        let ksym = "libbpf: extern (func ksym) 'bpf_x': not found in kernel or module BTFs\n";
        assert_eq!(parsed("heap", 3, ksym).missing, kfunc("bpf_x"));
    }

    #[test]
    fn nothing_is_made_up_of_what_is_not_understood() {
        for text in ["", "libbpf: prog '", "libbpf: prog 'x", "libbpf: map 'x': pinned", "what?"] {
            let found = parsed("heap", libc::EINVAL, text);
            assert_eq!((found.missing.clone(), found.verifier.len()), (None, 0), "{text}");
        }
        let nothing = parse("heap", None, &[]);
        assert_eq!(nothing.to_string(), "loading the BPF programs of heap.bpf.o failed");
    }

    #[test]
    fn of_a_long_log_the_end_is_kept_and_whose_it_is() {
        SAID.take();
        let log = "0: (b7) r0 = 0\n".repeat(1 << 14);
        keep(
            PrintLevel::Warn,
            format!(
                "libbpf: prog 'long': -- BEGIN PROG LOAD LOG --\n{log}too long\n-- END PROG LOAD LOG --\n"
            ),
        );
        let said = SAID.take();
        assert!(said.iter().map(String::len).sum::<usize>() < 2 * LONGEST_MESSAGE);
        let found = parse("heap", Some(libc::E2BIG), &said);
        assert_eq!(found.part, Part::Program("long".to_owned()));
        assert_eq!(found.verdict(), Some("too long"));
    }

    /// The real verifier, of a program that reads where it may not: a socket filter, which root and, where
    /// it is allowed, everybody may load.
    #[test]
    fn the_verifiers_own_words() {
        let compiled = tempfile::tempdir().expect("a temporary folder");
        let (source, object) = (compiled.path().join("bad.c"), compiled.path().join("bad.o"));
        let text = "__attribute__((section(\"socket\"), used)) int reads_nowhere(void *ctx) { return *(int *)7; }\n\
                    char licensed[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
        std::fs::write(&source, text).expect("written");
        let clang = std::process::Command::new("clang")
            .args(["-O1", "-g", "-target", "bpf", "-Wno-everything", "-c"])
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .status();
        if !clang.is_ok_and(|status| status.success()) {
            crate::skip::skip_this("no clang for bpf");
            return;
        }
        listen();
        let open = ObjectBuilder::default().open_file(&object).expect("an object");
        let Err(error) = open.load() else { panic!("a read of address 7 was loaded") };
        let CaptureError::Refused(found) = refused("bad", &error) else { panic!("another error") };
        if found.part == Part::Everything {
            crate::skip::skip_this("no BPF program can be loaded here");
            return;
        }
        assert_eq!(found.part, Part::Program("reads_nowhere".to_owned()));
        assert!(found.is_verdict() && found.missing.is_none(), "{found:?}");
        assert_eq!(found.errno, Some(libc::EACCES), "{found:?}");
        assert!(found.verdict().is_some_and(|words| words.contains("mem access")), "{found:?}");
    }
}
