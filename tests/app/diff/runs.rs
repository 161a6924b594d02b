//! `vmaudit diff` of real runs: the cause is the first line, stacks match in spite of randomised
//! addresses, and without randomisation addresses match.

use crate::support::{demo_program, skip, skip_without, skip_without_bpf, vmaudit};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Runs a command under vmaudit; `options` are vmaudit's.
fn recorded<S: AsRef<OsStr>>(options: &[&str], env: &[(&str, &str)], command: &[S]) {
    let mut run = Command::new(vmaudit());
    run.args(["run", "--as-root"]).args(options).arg("--").args(command).envs(env.iter().copied());
    let output = run.stdin(Stdio::null()).output().expect("vmaudit starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_string_lossy().into_owned()
}

fn diff(args: &[&str]) -> Value {
    let output =
        Command::new(vmaudit()).args(["diff", "-f", "json"]).args(args).output().expect("vmaudit starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn symbols(diff: &Value, change: &Value) -> Vec<String> {
    let Some(stack) = change["stack"].as_u64() else { return Vec::new() };
    let frames = diff["stacks"][stack as usize]["frames"].as_array().expect("frames");
    frames.iter().filter_map(|f| f["symbol"].as_str()).map(str::to_owned).collect()
}

fn changes(diff: &Value) -> &[Value] {
    diff["changes"].as_array().expect("changes")
}

fn read(report: &str) -> Value {
    serde_json::from_slice(&std::fs::read(report).expect("a report")).expect("JSON")
}

/// How many aligned GiB the main process' jemalloc mappings lie in. jemalloc's radix tree has a leaf of 2 MiB for
/// each (`rtree.c`: 18 of a page number's 36 bits), so that a random address decides how large its bookkeeping is.
fn gibibytes_of_jemalloc(report: &str) -> usize {
    let report = read(report);
    let address = |region: &Value, key: &str| {
        let digits = region[key].as_str().and_then(|text| text.strip_prefix("0x")).expect("an address");
        u64::from_str_radix(digits, 16).expect("hexadecimal digits")
    };
    let regions = report["processes"][0]["regions"].as_array().expect("regions");
    let jemalloc = regions.iter().filter(|region| region["category"] == "jemalloc");
    let leaves: BTreeSet<u64> =
        jemalloc.flat_map(|r| [address(r, "start") >> 30, (address(r, "end") - 1) >> 30]).collect();
    leaves.len()
}

/// As Docker's default profile: no clone3, so that glibc calls clone.
fn hide_clone3(command: &mut Command) {
    const NR: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut program = [
        step(NR, 0, 0),
        step(IS, 1, libc::SYS_clone3 as u32),
        step(RETURN, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the filter lives until the call has returned.
        let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &filter) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(install) };
}

#[test]
fn how_a_container_starts_threads_is_no_difference() {
    const TEST: &str = "how_a_container_starts_threads_is_no_difference";
    let program = match demo_program() {
        Ok(program) => program,
        Err(why) => return skip(TEST, &why),
    };
    if skip_without_bpf(TEST) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [host, container] = ["host.json", "box.json"].map(|name| path(folder.path(), name));
    for (report, hidden) in [(&host, false), (&container, true)] {
        let mut run = Command::new(vmaudit());
        run.args(["run", "--as-root", "-f", "json", "--report", report, "--"]).arg(&program);
        run.env("MALLOC_CONF", "narenas:1").stdin(Stdio::null());
        if hidden {
            run.env("MALLOC_TOP_PAD_", "131072");
            hide_clone3(&mut run);
        }
        let output = run.output().expect("vmaudit starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(report).expect("a report");
        let starts = |function: &str| text.contains(&format!("\"symbol\": \"{function}\""));
        if !starts("start_thread") {
            return skip(TEST, "the C library has no names");
        }
        assert_eq!(starts("clone3"), !hidden);
    }
    let diff = diff(&[&host, &container]);
    let arenas: Vec<&Value> = changes(&diff).iter().filter(|c| c["category"] == "glibc-arena").collect();
    assert!(arenas.iter().all(|change| change["virt"]["change"] == 0), "{arenas:#?}");
    let reasons = diff["reasons"].as_array().expect("reasons");
    let names: Vec<&str> = reasons.iter().filter_map(|reason| reason["what"].as_str()).collect();
    assert_eq!(names, ["MALLOC_TOP_PAD_"], "{reasons:#?}");
}

/// Why has the container 128 MiB more than the host? Two threads made an arena each.
#[test]
fn the_arena_that_only_one_has_comes_first() {
    const TEST: &str = "the_arena_that_only_one_has_comes_first";
    let program = match demo_program() {
        Ok(program) => program,
        Err(why) => return skip(TEST, &why),
    };
    if skip_without_bpf(TEST) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (host, recording, container) =
        (path(folder.path(), "host.json"), path(folder.path(), "host.rec"), path(folder.path(), "box.json"));
    // Which of its threads share one of jemalloc's arenas, and so how many there are, is chance but for this.
    let one_of_jemalloc = ("MALLOC_CONF", "narenas:1");
    let one_arena = [("MALLOC_ARENA_MAX", "1"), one_of_jemalloc];
    let to_host = ["-f", "json", "--report", &host, "-o", &recording];
    recorded(&to_host, &one_arena, &[&program]);
    // Its threads all live until its end: each of the two that call malloc has an arena.
    recorded(&["-f", "json", "--report", &container], &[one_of_jemalloc], &[&program]);
    for before in [&host, &recording] {
        let found = diff(&[before, &container]);
        let threads: Vec<&str> = changes(&found)[..2]
            .iter()
            .map(|change| {
                assert_eq!(
                    (change["kind"].as_str(), change["category"].as_str()),
                    (Some("new"), Some("glibc-arena"))
                );
                assert_eq!(change["virt"]["change"], 64 << 20);
                let thread = change["threads"][0].as_str().expect("a thread's name");
                assert!(symbols(&found, change).iter().any(|name| name == thread), "its stack: {change}");
                assert!(
                    change["fix"][0]["knob"]
                        .as_str()
                        .is_some_and(|knob| knob.starts_with("MALLOC_ARENA_MAX"))
                );
                thread
            })
            .collect();
        assert!(threads.contains(&"reader") && threads.contains(&"freer"), "{threads:?}");
        let reason = &found["reasons"][0];
        assert_eq!((&reason["what"], &reason["a"]), (&"MALLOC_ARENA_MAX".into(), &"1".into()), "{reason}");
        assert_eq!(reason["explains"], 128 << 20, "{reason}");
        // all else is the same by stack, at other addresses
        let same_tables = [&host, &container].iter().all(|report| gibibytes_of_jemalloc(report) == 1);
        let rest: Vec<&Value> = changes(&found)[2..]
            .iter()
            .filter(|c| c["virt"]["change"] != 0 && (same_tables || c["category"] != "jemalloc"))
            .collect();
        assert!(
            rest.iter().all(|c| c["virt"]["change"].as_i64().is_some_and(|n| n.abs() < 1 << 20)),
            "{rest:?}"
        );
        assert!(found["a"]["aslr"] == true || found["b"]["aslr"] == false);
    }
    // the other way round it is gone, and by category the same
    let back = diff(&[&container, &host]);
    assert_eq!(
        (changes(&back)[0]["kind"].as_str(), changes(&back)[1]["kind"].as_str()),
        (Some("gone"), Some("gone"))
    );
    let by_category = diff(&["--by", "category", &host, &container]);
    assert_eq!(by_category["categories"][0]["id"], "glibc-arena");
    assert_eq!(by_category["categories"][0]["virt"]["change"], 128 << 20);
    let by_finding = diff(&["--by", "finding", &host, &container]);
    assert_eq!(changes(&by_finding)[0]["category"], "glibc-arena");
}

/// (start, end, rights, category) of the main process' regions but for those of some categories.
fn layout(report: &str, without: &[&str]) -> Vec<[String; 4]> {
    let report = read(report);
    let main = &report["processes"][0];
    assert_eq!(main["aslr"], false);
    let text = |region: &Value, key: &str| region[key].as_str().expect("text").to_owned();
    let regions = main["regions"].as_array().expect("regions").iter();
    let expected = regions.filter(|r| !without.contains(&r["category"].as_str().expect("text")));
    expected.map(|r| ["start", "end", "prot", "category"].map(|key| text(r, key))).collect()
}

#[test]
fn without_randomisation_addresses_agree() {
    const TEST: &str = "without_randomisation_addresses_agree";
    if skip_without_bpf(TEST) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (path(folder.path(), "1"), path(folder.path(), "2"));
    let twice = |command: &[PathBuf]| {
        for report in [&one, &two] {
            recorded(&["--aslr", "off", "-f", "json", "--report", report], &[], command);
        }
        diff(&["--by", "address", &one, &two])
    };
    let python =
        "import threading, json; t = threading.Thread(target=lambda: [0] * 100000); t.start(); t.join()";
    let mut commands: Vec<Vec<PathBuf>> = vec![vec!["/bin/true".into()]];
    if !skip_without(TEST, "/usr/bin/python3") {
        commands.push(vec!["/usr/bin/python3".into(), "-c".into(), python.into()]);
    }
    for command in &commands {
        let found = twice(command);
        assert_eq!(layout(&one, &[]), layout(&two, &[]), "{command:?}");
        assert_eq!(found["totals"]["virt"]["change"], 0);
        assert!(
            changes(&found).iter().all(|c| c["virt"]["change"] == 0),
            "{command:?}: {}",
            found["changes"]
        );
        assert!(!found["notes"].to_string().contains("randomised"), "{}", found["notes"]);
    }
    match demo_program() {
        Ok(program) => {
            let found = twice(&[program]);
            // which of its threads comes first is chance, and with it whose memory lies where: an arena
            // may come between two stacks
            let by_chance = ["glibc-arena", "jemalloc", "thread-stack"];
            assert_eq!(layout(&one, &by_chance), layout(&two, &by_chance));
            assert!(!found["notes"].to_string().contains("randomised"), "{}", found["notes"]);
        }
        Err(why) => skip(TEST, &why),
    }
}

/// A redis server on a socket of its own, gone with the test.
struct Redis {
    child: Child,
    socket: String,
}

impl Redis {
    fn start(mut command: Command, folder: &Path) -> Redis {
        let socket = path(folder, "redis.sock");
        command.args(["redis-server", "--port", "0", "--save", "", "--unixsocket", &socket]);
        let child = command.current_dir(folder).stdout(Stdio::null()).spawn().expect("it starts");
        let redis = Redis { child, socket };
        // redis-cli says at once that nobody answers
        for _ in 0..10_000 {
            if redis.command(&["ping"]).is_some_and(|answer| answer.starts_with("PONG")) {
                return redis;
            }
        }
        panic!("redis never answered");
    }

    fn command(&self, words: &[&str]) -> Option<String> {
        let output =
            Command::new("redis-cli").args(["-s", &self.socket]).args(words).output().expect("redis-cli");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn fill(&self) {
        let script = "for i=1,60000 do redis.call('set', 'k'..i, string.rep('x', 300)) end return 'filled'";
        assert!(self.command(&["eval", script, "0"]).is_some_and(|answer| answer.starts_with("filled")));
    }

    fn end(mut self) {
        self.command(&["shutdown", "nosave"]);
        assert!(self.child.wait().expect("its end").success());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.command(&["shutdown", "nosave"]);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[test]
fn redis_before_and_after_load_in_two_snapshots() {
    const TEST: &str = "redis_before_and_after_load_in_two_snapshots";
    if skip_without(TEST, "/usr/bin/redis-server") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let redis = Redis::start(Command::new("env"), folder.path());
    let pid = redis.child.id().to_string();
    let (before, after) = (path(folder.path(), "before"), path(folder.path(), "after"));
    let snapshot = |to: &str| {
        let mut command = Command::new(vmaudit());
        command.args(["snapshot", "-f", "json", "-p", &pid, "--report", to]);
        assert!(command.status().expect("vmaudit starts").success());
    };
    snapshot(&before);
    redis.fill();
    snapshot(&after);
    let found = diff(&[&before, &after]);
    let first = &changes(&found)[0];
    assert_eq!(first["kind"], "grown");
    assert!(first["rss"]["change"].as_i64().is_some_and(|n| n > 8 << 20), "{first}");
    assert!(found["notes"].to_string().contains("neither side has call stacks"));
    // one process seen twice: its addresses are comparable
    let by_address = diff(&["--by", "address", &before, &after]);
    assert!(!by_address["notes"].to_string().contains("randomised"), "{}", by_address["notes"]);
    assert_eq!(by_address["totals"], found["totals"]);
    redis.end();
}

#[test]
fn redis_with_and_without_load_in_two_runs() {
    const TEST: &str = "redis_with_and_without_load_in_two_runs";
    if skip_without(TEST, "/usr/bin/redis-server") || skip_without_bpf(TEST) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let run = |name: &str, fill: bool| {
        let file = path(folder.path(), name);
        let mut command = Command::new(vmaudit());
        command.args(["run", "--as-root", "-f", "json", "--report", &file, "--"]);
        let redis = Redis::start(command, folder.path());
        if fill {
            redis.fill();
        }
        redis.end();
        file
    };
    let (idle, loaded) = (run("idle", false), run("loaded", true));
    let found = diff(&[&idle, &loaded]);
    let first = &changes(&found)[0];
    assert!(first["virt"]["change"].as_i64().is_some_and(|n| n > 5 << 20), "{first}");
    assert!(!symbols(&found, first).is_empty(), "whose stack it was: {first}");
    // the same stacks requested the thread stacks of both, at other addresses
    assert!(!changes(&found).iter().any(|c| c["category"] == "thread-stack" && c["virt"]["change"] != 0));
}
