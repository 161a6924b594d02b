//! Well-known programs: every mapping's residency against smaps. Each is left out where it is not
//! installed.

use super::target::{RUNGS, Target, differences, observe_from, smaps_of};
use crate::support::skip_this;
use std::path::Path;
use vmaudit::attribution::rules::heap_headers;
use vmaudit::model::observation::ResidencySource;

/// Compares what was read of the program with smaps while it is stopped.
fn compare(program: &str, args: &[&str], last: impl Fn(&str) -> bool) -> Option<Target> {
    if !std::env::var("PATH").unwrap_or_default().split(':').any(|dir| Path::new(dir).join(program).exists())
    {
        skip_this(&format!("{program} is not installed"));
        return None;
    }
    let target = Target::start(Path::new(program), args, last).stopped();
    for rung in RUNGS {
        compare_on(&target, rung);
    }
    Some(target)
}

fn compare_on(target: &Target, rung: ResidencySource) {
    let before = smaps_of(target.pid());
    let seen = observe_from(target.pid(), rung);
    let after = smaps_of(target.pid());
    let figures = |entries: &[vmaudit::procfs::SmapsEntry]| {
        entries.iter().map(|e| (e.mapping.clone(), e.rss, e.swap)).collect::<Vec<_>>()
    };
    assert_eq!(figures(&before), figures(&after), "it is stopped");
    if seen.gaps.iter().any(|gap| gap.contains("pages of zeros")) {
        return skip_this(&format!("{rung:?} is exact only with CAP_SYS_ADMIN"));
    }
    let wrong = differences(&seen, &after);
    assert!(wrong.is_empty(), "{rung:?}:\n{}", wrong.join("\n"));
    assert!(seen.gaps.is_empty(), "{:?}", seen.gaps);
}

fn says_ready(line: &str) -> bool {
    line == "ready"
}

#[test]
fn shell() {
    compare("sh", &["-c", "echo ready; read line"], says_ready);
}

#[test]
fn python() {
    let script = "import threading, sys\n\
        for i in range(4): threading.Thread(target=threading.Event().wait, daemon=True).start()\n\
        print('ready', flush=True); sys.stdin.read()";
    let Some(target) = compare("python3", &["-c", script], says_ready) else { return };
    let seen = observe_from(target.pid(), ResidencySource::PagemapScan);
    assert_eq!(seen.threads.len(), 5);
    // Each thread has freed what its creator allocated, and so made an arena: up to eight for
    // each processor, the main one included.
    if seen.mappings.iter().any(|mapping| mapping.name.ends_with(b"/libc.so.6")) {
        assert_eq!(seen.heap_infos.len(), 4, "{:?}", seen.heap_infos);
    }
}

#[test]
fn node() {
    compare("node", &["-e", "console.log('ready'); process.stdin.resume()"], says_ready);
}

#[test]
fn java() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("Waits.java");
    let text = "class Waits { public static void main(String[] a) throws Exception {\n\
        System.out.println(\"ready\"); System.out.flush(); System.in.read(); } }";
    std::fs::write(&source, text).expect("a file");
    compare("java", &["-Xmx64m", &source.to_string_lossy()], says_ready);
}

#[test]
fn redis() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_string_lossy();
    let socket = format!("{path}/socket");
    let args = ["--port", "0", "--unixsocket", &socket, "--save", "", "--dir", &path];
    compare("redis-server", &args, |line| line.to_lowercase().contains("ready to accept"));
}

/// Every process that this user may examine. Others' processes change while they are read, so this prints
/// what it finds and asserts nothing.
#[test]
#[ignore = "examines all processes of the machine; run by hand"]
fn everything_on_this_machine() {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let (mut same, mut moving) = (0, Vec::new());
    for pid in pids {
        let Ok(text) = std::fs::read(format!("/proc/{pid}/smaps")) else { continue };
        if text.is_empty() {
            continue;
        }
        for rung in RUNGS {
            let options = vmaudit::procfs::ObserveOptions {
                residency_from: rung,
                headers: heap_headers(),
                ..Default::default()
            };
            let Ok(seen) = vmaudit::procfs::observe(pid, pid, options) else { continue };
            let wrong = differences(&seen, &smaps_of(pid));
            if wrong.is_empty() && seen.gaps.is_empty() {
                same += 1;
            } else {
                let comm = String::from_utf8_lossy(&seen.comm).into_owned();
                moving.push(format!("{pid} {comm} {rung:?}: {:?}\n{}", seen.gaps, wrong.join("\n")));
            }
        }
    }
    println!("{same} is equal to smaps, {} not:\n{}", moving.len(), moving.join("\n"));
}
