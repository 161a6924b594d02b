//! Ordinary programs, under `vmaudit heap` in all its ways: what they print and how they end is what it is
//! without.

use crate::support::report::list;
use crate::support::unprivileged::NOBODY;
use crate::support::{bpf_available, program, program_built, skip, static_program, vmaudit, watchdog};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

struct Program {
    name: &'static str,
    /// A script for sh: `$1` is an empty folder, `$2` the program that sends itself a signal.
    script: &'static str,
    /// By uprobes each call takes microseconds: not for what allocates all the time.
    is_quick: bool,
}

const fn program_of(name: &'static str, script: &'static str) -> Program {
    Program { name, script, is_quick: true }
}

const fn slow(name: &'static str, script: &'static str) -> Program {
    Program { name, script, is_quick: false }
}

const PROGRAMS: [Program; 9] = [
    slow(
        "node",
        "exec node -e '
            const all = new Map();
            for (let i = 0; i < 20000; i++) all.set(`key ${i % 700}`, Buffer.alloc(i % 5000, i % 251));
            const sum = [...all].reduce((sum, [key, value]) => sum + key.length + value.length + (value[0] || 0), 0);
            console.log(sum, JSON.stringify([...all.keys()].sort().slice(0, 20)));
            console.error(require(\"zlib\").gzipSync(Buffer.alloc(100000, \"text \")).length);
            process.exitCode = 3;'",
    ),
    slow(
        "java",
        "cat > $1/Prog.java <<'END'
import java.util.*;
public class Prog {
    public static void main(String[] arguments) throws Exception {
        Map<String, byte[]> all = new TreeMap<>();
        for (int i = 0; i < 20000; i++) all.put(\"key \" + i % 700, new byte[i % 5000]);
        List<Thread> threads = new ArrayList<>();
        long[] sums = new long[4];
        for (int t = 0; t < 4; t++) {
            int own = t;
            threads.add(new Thread(() -> { for (byte[] one : all.values()) sums[own] += one.length; }));
        }
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
        System.out.println(Arrays.toString(sums) + all.keySet());
        System.err.println(new java.util.zip.CRC32().getValue());
        System.exit(5);
    }
}
END
        exec java -XX:-UsePerfData $1/Prog.java",
    ),
    program_of(
        "perl",
        "exec perl -e '
            my %all; $all{$_ % 700} .= chr(65 + $_ % 26) x ($_ % 30) for 1..20000;
            print join(\",\", map { length $all{$_} } sort { $a <=> $b } keys %all), \"\\n\";
            print STDERR \"done\\n\"; exit 7'",
    ),
    program_of(
        "git",
        "export HOME=$1 GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a \\
            GIT_COMMITTER_EMAIL=a@b GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000'
        git init -q $1/repo && cd $1/repo || exit 9
        for i in 1 2 3; do seq $i 200 > file$i; git add . && git commit -q -m \"step $i\"; done
        git log -p --stat && git repack -q -a -d && git fsck --full && git diff --exit-code HEAD~2 HEAD",
    ),
    slow(
        "clang",
        "cat > $1/a.c <<'END'
#include <stdio.h>
static int sum(const int *from, int count) { int all = 0; while (count--) all += *from++; return all; }
int main(int argc, char **argv) { int all[64] = {argc}; return printf(\"%d\", sum(all, 64)); }
END
        cd $1 && clang -O2 -S -o - a.c && exec clang -c -o a.o -Dmain=1 a.c",
    ),
    program_of(
        "redis-server",
        "redis-server --port 0 --unixsocket $1/socket --save '' --appendonly no --dir $1 > /dev/null &
        until redis-cli -s $1/socket ping 2>/dev/null | grep -q PONG; do :; done
        redis-cli -s $1/socket eval \"for i = 1, 20000 do redis.call('SET', 'k' .. i, string.rep('x', i % 300)) end
            for i = 1, 20000, 3 do redis.call('DEL', 'k' .. i) end return redis.call('DBSIZE')\" 0
        redis-cli -s $1/socket debug digest
        redis-cli -s $1/socket shutdown nosave
        wait $!; exit $?",
    ),
    program_of(
        "python3",
        "exec python3 -c '
import subprocess, sys, threading
kept = [{\"name\": str(i), \"edges\": list(range(i % 20))} for i in range(5000)]
threads = [threading.Thread(target=lambda: [bytes(i) for i in range(2000)]) for _ in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(sum(len(one[\"edges\"]) for one in kept), subprocess.run([\"sh\", \"-c\", \"exit 4\"]).returncode)
sys.stdout.flush(); sys.exit(\"an error\")'",
    ),
    program_of("xz", "seq 1 200000 | xz -9 -T2 -c | tee $1/out | xz -dc | sha256sum; cksum < $1/out; xz -dc $2"),
    program_of("bash", "exec bash -c 'trap \"echo caught\" USR1; kill -USR1 $$; { (kill -SEGV $BASHPID); } 2>/dev/null; echo $?; kill -TERM $$'"),
];

fn sh(script: &str, folder: &Path, before: &[&str]) -> Output {
    let signals = program("heap_truth");
    let mut words: Vec<&str> = before.to_vec();
    words.extend(["/bin/sh", "-c", script, "sh"]);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(folder).arg(&signals);
    watchdog::output(&mut command)
}

fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).exists())
}

/// By the library, exactly and sampled; and by uprobes what does not take minutes so.
fn prints_and_ends_as_it_does_alone(name: &str) {
    let vmaudit = vmaudit();
    let has_probes = bpf_available();
    for Program { name, script, is_quick } in PROGRAMS.iter().filter(|program| program.name == name) {
        if !is_installed(name) {
            skip(name, "not installed");
            continue;
        }
        let fresh = || tempfile::tempdir().expect("a temporary folder");
        // At the same path: it is in what some print.
        let folder = fresh();
        let clean = || {
            for entry in folder.path().read_dir().expect("a folder").flatten() {
                let path = entry.path();
                let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
            }
        };
        let alone = sh(script, folder.path(), &[]);
        for options in [&["--method", "preload"][..], &["--sample", "64k"], &["--method", "uprobes"]] {
            if options.contains(&"uprobes") && (!*is_quick || has_probes.is_err()) {
                if let Err(why) = &has_probes {
                    skip(name, why);
                }
                continue;
            }
            clean();
            let reports = fresh();
            let report = reports.path().join("report.json");
            let mut before =
                vec![vmaudit.to_str().expect("UTF-8"), "heap", "--as-root", "-f", "json", "--report"];
            before.push(report.to_str().expect("UTF-8"));
            before.extend(options);
            before.push("--");
            let under = sh(script, folder.path(), &before);
            let said = String::from_utf8_lossy(&under.stderr);
            let reported = format!("{name} {options:?}: {said}");
            assert_eq!(
                String::from_utf8_lossy(&under.stdout),
                String::from_utf8_lossy(&alone.stdout),
                "{reported}"
            );
            assert_eq!(ending(&under), ending(&alone), "{reported}");
            // vmaudit's own lines are among the program's.
            let missing: Vec<_> = alone
                .stderr
                .split(|&byte| byte == b'\n')
                .filter(|line| !has_line(&under.stderr, line))
                .collect();
            assert!(missing.is_empty(), "{reported}\nwithout {}", String::from_utf8_lossy(&missing.concat()));
            let report: Value =
                serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("JSON");
            assert!(!list(&report, "processes").is_empty(), "{reported}");
        }
    }
}

#[test]
fn node_prints_and_ends_as_it_does_alone() {
    prints_and_ends_as_it_does_alone("node");
}

#[test]
fn java_prints_and_ends_as_it_does_alone() {
    prints_and_ends_as_it_does_alone("java");
}

#[test]
fn perl_prints_and_ends_as_it_does_alone() {
    prints_and_ends_as_it_does_alone("perl");
}

#[test]
fn git_prints_and_ends_as_it_does_alone() {
    prints_and_ends_as_it_does_alone("git");
}

#[test]
fn clang_prints_and_ends_as_it_does_alone() {
    prints_and_ends_as_it_does_alone("clang");
}

#[test]
fn redis_prints_and_ends_as_it_does_alone() {
    prints_and_ends_as_it_does_alone("redis-server");
}

#[test]
fn python_prints_and_ends_as_it_does_alone() {
    prints_and_ends_as_it_does_alone("python3");
}

#[test]
fn xz_prints_and_ends_as_it_does_alone() {
    prints_and_ends_as_it_does_alone("xz");
}

#[test]
fn bash_prints_and_ends_as_it_does_alone() {
    prints_and_ends_as_it_does_alone("bash");
}

fn has_line(text: &[u8], line: &[u8]) -> bool {
    text.split(|&byte| byte == b'\n').any(|other| other == line)
}

/// What the shell says of it: vmaudit ends with 128 and the signal, too.
fn ending(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let status = output.status;
    status.code().or(status.signal().map(|signal| 128 + signal)).expect("it has ended")
}

/// What the dynamic loader preloads nothing into is named, and counted by uprobes as far as that goes: it runs as it does alone.
#[test]
fn what_the_library_cannot_get_into_is_said_and_runs_all_the_same() {
    const TEST: &str = "what_the_library_cannot_get_into_is_said_and_runs_all_the_same";
    if let Err(why) = bpf_available() {
        return skip(TEST, &why);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = folder.path().join("other");
    std::fs::copy(program("heap_truth"), &other).expect("a copy");
    chown(&other, Some(NOBODY.parse().expect("a number")), None).expect("root may");
    std::fs::set_permissions(&other, Permissions::from_mode(0o4755)).expect("root may");
    let mut cases = vec![
        (static_program("heap_truth"), "is statically linked: nothing can be preloaded"),
        (other, "gets other rights when it starts: nothing can be preloaded"),
    ];
    match program_built("compat.s", &["gcc", "-m32", "-nostdlib", "-static"]) {
        Ok(compat) => cases.push((compat, "is no 64-bit program for this processor")),
        Err(why) => skip(TEST, &why),
    }
    for (program, why) in cases {
        let alone = watchdog::output(&mut Command::new(&program));
        let mut vmaudit = Command::new(vmaudit());
        let command = vmaudit.args(["heap", "--as-root", "--report", "/dev/null", "--"]).arg(&program);
        let under = watchdog::output(command);
        let said = String::from_utf8_lossy(&under.stderr);
        assert!(said.contains("counted by uprobes: ") && said.contains(why), "{said}");
        assert_eq!(under.status.code(), alone.status.code(), "{said}");
        let lines = |output: &Output| output.stdout.split(|&byte| byte == b'\n').count();
        assert_eq!(lines(&under), lines(&alone), "{said}");
    }
}
