#!/usr/bin/python3
"""Tries every setting that the rules written as code advise or advise against, on a real program that has such memory,
and prints what was promised and what it changed (VIRT and RSS of the memory's category, over all processes). Which
program proves which sentence is in src/attribution/rules/sentences.toml; --write puts what was measured there, from where
docs/evidence.md has it. Exit status 1 if a sentence is false."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILE = os.path.join(ROOT, "src/attribution/rules/sentences.toml")
# As `vmaudit compare` has it.
HOLDS, SMALL = 0.9, 0.05

THREADS = """import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def work():
    kept = [libc.malloc(1000) for _ in range(1000)]
    time.sleep(60)
for _ in range(int(os.environ.get("N", "8"))): threading.Thread(target=work, daemon=True).start()
time.sleep(1.5)
if "TRIM" in os.environ: libc.malloc_trim(0)
time.sleep(60)
"""
BLOCKS = """import os, time
kept = [bytearray(int(os.environ.get("MIB", "64")) << 20)]
held = __import__("mmap").mmap(-1, 4096)
import ctypes; libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p
own = libc.malloc(int(os.environ.get("MIB", "64")) << 20)
time.sleep(60)
"""
HEAP = """import ctypes, time
libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p; libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(24 << 20))
block = libc.malloc(20 << 20); top = [libc.malloc(2000) for _ in range(100)]; libc.free(block)
time.sleep(60)
"""
JOINED = """#include <pthread.h>
#include <unistd.h>
static void *run(void *p) { usleep(200000); return p; }
int main(void) { pthread_t t[16]; for (int i = 0; i < 16; i++) pthread_create(&t[i], 0, run, 0);
for (int i = 0; i < 16; i++) pthread_join(t[i], 0); sleep(60); return 0; }
"""
OMP = """#include <omp.h>
#include <unistd.h>
int main(void) {
#pragma omp parallel num_threads(omp_get_max_threads() < 4 ? omp_get_max_threads() : 4)
usleep(1000);
sleep(60); return 0; }
"""
RUST = """fn main() { let all: Vec<_> = (0..8).map(|_| std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(60))))
.collect(); for one in all { one.join().unwrap(); } }
"""
GO = """package main
import "time"
func main() { kept := make([]byte, 64<<20); for i := range kept { kept[i] = 1 }; time.Sleep(time.Minute); println(len(kept)) }
"""
ALLOCATES = """#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <pthread.h>
static pthread_barrier_t full;
static void *run(void *p) { char *all[4000]; for (int i = 0; i < 4000; i++) { all[i] = malloc(10000); memset(all[i], 1, 10000); }
pthread_barrier_wait(&full); for (int i = 0; i < 4000; i++) if (i % 8) free(all[i]); if (!p) return 0; sleep(60); return 0; }
int main(void) { pthread_t t[3]; pthread_barrier_init(&full, 0, 4); for (long i = 1; i < 4; i++) pthread_create(&t[i - 1], 0, run, (void *)i); run(0); sleep(60); return 0; }
"""
ADDRESS = "#include <unistd.h>\nint main(void) { sleep(60); return 0; }\n"
ALIGNED = "int shared(void) { return 7; }\nint table[5] = {1, 2};\n"
ALIGNED_USER = "#include <unistd.h>\nint shared(void);\nint main(void) { sleep(60); return shared(); }\n"
JAVA = """public class Waits { public static void main(String[] a) throws Exception {
byte[][] kept = new byte[20][]; for (int i = 0; i < 20; i++) kept[i] = new byte[1 << 20];
for (int i = 0; i < 6; i++) { Thread t = new Thread(() -> { try { Thread.sleep(60000); } catch (Exception e) {} }); t.setDaemon(true); t.start(); }
if (System.getenv("COLLECT") != null) System.gc(); Thread.sleep(60000); } }
"""
NODE = """const { Worker } = require('worker_threads');
for (let i = 0; i < Number(process.env.WORKERS ?? 2); i++) new Worker('setTimeout(() => {}, 60000)', { eval: true });
setTimeout(() => {}, 60000);"""
WASM = """const most = Number(process.env.MOST ?? 100); const kept = [];
for (let i = 0; i < Number(process.env.MEMORIES ?? 2); i++) kept.push(new WebAssembly.Memory({ initial: 1, maximum: most }));
setTimeout(() => console.log(kept.length), 60000);"""
FIBRES = "all = (1..256).map { f = Fiber.new { Fiber.yield }; f.resume; f }; sleep 60"
OBJECTS = """import gc, os, time
kept = [(i, str(i)) for i in range(300000)]
del kept[::2]
if "COLLECT" in os.environ: gc.collect()
time.sleep(60)
"""
STACKS = """import os, threading, time
threading.stack_size(int(os.environ.get("KIB", "4096")) << 10)
for _ in range(3): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
time.sleep(60)
"""
SHARED = """import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 3 + [ctypes.c_char_p]
together = mmap.mmap(-1, 8 << 20)
fd = os.memfd_create("own"); os.ftruncate(fd, 8 << 20); behind = mmap.mmap(fd, 8 << 20)
zero = libc.mmap(None, 8 << 20, 3, 2, os.open("/dev/zero", os.O_RDWR), 0)
named = libc.mmap(None, 8 << 20, 3, 0x22, -1, 0); libc.prctl(0x53564d41, 0, named, 8 << 20, b"own pool")
time.sleep(60)
"""
ENVOY = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 7716}}}\nstatic_resources: {}\n"
REDIS = """until redis-cli -p 7719 ping; do sleep .1; done
redis-cli -p 7719 debug populate 300000 k 100; redis-cli -p 7719 flushall; sleep 1"""
POSTGRES = """D=$FOLDER/pg; exec setpriv --reuid=postgres --regid=postgres --clear-groups $BIN/postgres -D $D -k $D -c listen_addresses= \
-c port=7718 -c shared_buffers=${BUFFERS-128MB} -c huge_pages=${HUGE-try}"""


def sources(folder):
    """Programs that have to be made. What cannot be made is skipped where it is needed."""
    def write(name, text):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)

    def make(*command):
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"SKIP what {command[0]} makes: {error}", flush=True)

    for name, text in {"threads.py": THREADS, "blocks.py": BLOCKS, "heap.py": HEAP, "joined.c": JOINED, "omp.c": OMP,
                       "rust.rs": RUST, "waits.go": GO, "allocates.c": ALLOCATES, "address.c": ADDRESS, "a.c": ALIGNED,
                       "user.c": ALIGNED_USER, "Waits.java": JAVA, "node.js": NODE, "wasm.js": WASM,
                       "stacks.py": STACKS, "shared.py": SHARED, "envoy.yaml": ENVOY, "fibres.rb": FIBRES, "objects.py": OBJECTS}.items():
        write(name, text)
    make("gcc", "-O1", "joined.c", "-o", "joined", "-lpthread")
    make("gcc", "-O1", "-fopenmp", "omp.c", "-o", "omp")
    make("gcc", "-O1", "allocates.c", "-o", "allocates", "-lpthread")
    make("musl-gcc", "-O1", "allocates.c", "-o", "allocates-musl", "-lpthread")
    make("gcc", "-fsanitize=address", "address.c", "-o", "address")
    for pages in ("0x200000", "4096"):
        os.makedirs(os.path.join(folder, pages), exist_ok=True)
        make("gcc", "-shared", "-fPIC", "-Wl,-z,max-page-size=" + pages, "a.c", "-o", pages + "/liba.so")
    make("gcc", "user.c", "-o", "user", "-L4096", "-la")
    make("rustc", "-O", "rust.rs")
    make("go", "build", "-o", "waits", "waits.go")
    make("javac", "Waits.java")


def postgres(folder):
    data, binaries = os.path.join(folder, "pg"), postgres_binaries()
    if binaries and not os.path.exists(data):
        os.chmod(folder, 0o755)
        os.mkdir(data)
        shutil.chown(data, "postgres", "postgres")
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        subprocess.run(user + [binaries + "/initdb", "-D", data], check=True, capture_output=True, cwd="/")


def postgres_binaries():
    base = "/usr/lib/postgresql"
    versions = sorted(os.listdir(base)) if os.path.isdir(base) else []
    return os.path.join(base, versions[-1], "bin") if versions else None


def programs(folder):
    """By the name that sentences have: (command, what has to be there, seconds, load)."""
    at = lambda name: os.path.join(folder, name)
    lib = "/usr/lib/x86_64-linux-gnu/"
    java = ["java", "-cp", folder]
    shell = lambda line: ["sh", "-c", line]
    preload = lambda library: shell("exec env LD_PRELOAD=%s%s %s" % (lib, library, at("allocates")))
    return {
        "threads of Python": (["/usr/bin/python3", at("threads.py")], "/usr/bin/python3", 3, None),
        "4 threads of C": ([at("allocates")], at("allocates"), 3, None),
        "blocks of Python": (["/usr/bin/python3", at("blocks.py")], "/usr/bin/python3", 3, None),
        "a heap of Python": (["/usr/bin/python3", at("heap.py")], "/usr/bin/python3", 3, None),
        "objects of Python": (["/usr/bin/python3", at("objects.py")], "/usr/bin/python3", 8, None),
        "16 threads of C, joined": ([at("joined")], at("joined"), 3, None),
        "OpenMP, 4 threads": (["env", "OMP_NUM_THREADS=4", at("omp")], at("omp"), 3, None),
        "OpenMP": (shell("OMP_NUM_THREADS=${T-4} exec " + at("omp")), at("omp"), 3, None),
        "8 threads of Rust": ([at("rust")], at("rust"), 3, None),
        "Go, 64 MiB": ([at("waits")], at("waits"), 3, None),
        "AddressSanitizer": (shell("if [ $U ]; then ulimit -v $U; fi; exec " + at("address")), at("address"), 3, None),
        "a library for 2 MiB pages": (shell("LD_LIBRARY_PATH=%s/${P-0x200000} exec %s" % (folder, at("user"))), at("user"), 2, None),
        "Redis, flushed": (["redis-server", "--port", "7719", "--save", "", "--enable-debug-command", "yes"], "redis-server",
                           None, REDIS),
        "jemalloc, 4 threads": (preload("libjemalloc.so.2"), lib + "libjemalloc.so.2", 6, None),
        "mimalloc, 4 threads": (preload("libmimalloc.so.2"), lib + "libmimalloc.so.2", 6, None),
        "tcmalloc, 4 threads": (preload("libtcmalloc.so.4"), lib + "libtcmalloc.so.4", 6, None),
        "JVM": (shell("exec java -Xmx1g $J -cp %s Waits" % folder), "javac", 5, None),
        "JVM, ZGC": (shell("exec java -XX:+UseZGC -Xmx1g $J -cp %s Waits" % folder), "javac", 5, None),
        "Node.js, 2 workers": (["node", at("node.js")], "node", 7, None),
        "Node.js, WebAssembly": (shell("exec node $W " + at("wasm.js")), "node", 7, None),
        "Chromium": (shell("exec chromium --headless=new --no-sandbox --disable-gpu --user-data-dir=%s $C about:blank"
                           % at("chromium")), "chromium", 15, None),
        "256 fibres of Ruby": (["ruby", at("fibres.rb")], "ruby", 3, None),
        "3 threads of Python, 4 MiB": (["/usr/bin/python3", at("stacks.py")], "/usr/bin/python3", 3, None),
        "shared memory of Python": (["/usr/bin/python3", at("shared.py")], "/usr/bin/python3", 3, None),
        "musl, 4 threads": ([at("allocates-musl")], at("allocates-musl"), 6, None),
        "Valgrind": (["valgrind", "--quiet", "sleep", "60"], "valgrind", 5, None),
        "Envoy": (["envoy", "-c", at("envoy.yaml"), "--concurrency", "4"], "envoy", 5, None),
        "Bun": (["bun", "-e", "setInterval(() => {}, 60000)"], "bun", 4, None),
        "PostgreSQL": (shell("FOLDER=%s BIN=%s; %s" % (folder, postgres_binaries(), POSTGRES)),
                       (postgres_binaries() or "") + "/postgres", 8, None),
    }


def audit(options, folder, program, change):
    """The report of the program with this change; None where it did not run."""
    command, _, seconds, load = program
    report = os.path.join(folder, "report.json")
    if os.path.exists(report):
        os.remove(report)
    end = ["--load", load] if load else ["--duration", str(seconds)]
    # Ended by timeout(1): what `vmaudit run` leaves running is somebody else's to end.
    line = ["timeout", "-k", "1", str((seconds or 20) + 3)] + command
    # How many arenas there are depends on how threads are scheduled: one, unless they are what is examined.
    arenas = [] if command[-1].endswith(("threads.py", "allocates")) else ["--env", "MALLOC_ARENA_MAX=1"]
    arguments = ["run", "-f", "json", "--report", report] + end + arenas + change + ["--"] + line
    subprocess.run([options.vmaudit] + arguments, capture_output=True, stdin=subprocess.DEVNULL)
    if load:
        subprocess.run(["redis-cli", "-p", "7719", "shutdown", "nosave"], capture_output=True)
    try:
        with open(report) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def of(report, category):
    if category is None:
        totals = [process["totals"] for process in report["processes"]]
        return sum(total["virt"] for total in totals), sum(total["rss"] for total in totals)
    rows = [row for process in report["processes"] for row in process["categories"] if row["id"] == category]
    return sum(row["virt"] for row in rows), sum(row["rss"] for row in rows)


def findings(report, category):
    return [f for p in report["processes"] for f in p["findings"] if f["category"] == category]


def alive(report):
    return any(process["exit_code"] is None and process["signal"] is None for process in report["processes"])


def similar(shown, says):
    """A sentence as it is in the source may have {places}."""
    parts = [part for part in __import__("re").split(r"\{[^}]*\}", says) if part]
    return all(part in shown for part in parts)


def prove(options, folder, sentence, base, program):
    """(promised, saved of VIRT, saved of RSS, verdict)"""
    own = findings(base, sentence["category"])
    key = {"fix": "fix", "not": "no_help"}.get(sentence["kind"])
    if key is None:
        return None, None, None, "seen" if any(similar(f["why"], sentence["says"]) for f in own) else "not shown"
    shown = [entry for f in own for entry in f.get(key) or [] if similar(entry["knob"], sentence["says"])]
    if not shown:
        return None, None, None, "not shown"
    changed = audit(options, folder, program, sentence["change"])
    refused = changed is None or not alive(changed)
    if sentence.get("refuses"):
        return None, None, None, "holds" if refused else "FALSE: it runs"
    if refused:
        return None, None, None, "void: it does not run so"
    measured = None if sentence.get("whole") else sentence["category"]
    (virt, rss), (after, resident) = of(base, measured), of(changed, measured)
    saved = virt - after
    if key == "no_help":
        return None, saved, rss - resident, "holds" if abs(saved) <= virt * SMALL else "FALSE"
    promised = sum(entry["saves_virt"] for entry in shown)
    if promised:
        verdict = "holds" if saved >= promised * HOLDS else "less than promised"
    else:
        helps = saved >= virt * 0.01 or rss - resident >= rss * 0.01
        verdict = "helps" if helps else "no effect here"
    return promised, saved, rss - resident, verdict


def mib(size):
    return "" if size is None else f"{size / (1 << 20):,.1f}"


def written(header, sentences):
    """The file anew. Its values are words, lists of words and booleans."""
    text = header
    for sentence in sentences:
        text += "\n[[sentence]]\n"
        for key, value in sentence.items():
            text += f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vmaudit", required=True)
    parser.add_argument("--write", action="store_true", help="put what was measured into sentences.toml")
    parser.add_argument("programs", nargs="*", help="rules, parts of programs' names or of what is said; all without")
    options = parser.parse_args()
    with open(FILE) as file:
        text = file.read()
    header, sentences = text.split("\n[[sentence]]", 1)[0] + "\n", tomllib.loads(text)["sentence"]
    wrong = 0
    print("| rule | category | | says | program | promised | VIRT saved | RSS saved | |\n|---|---|---|---|---|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory(prefix="vmaudit-prove-") as folder:
        sources(folder)
        postgres(folder)
        known = programs(folder)
        bases = {}
        for sentence in sentences:
            name = sentence.get("program")
            is_chosen = not options.programs or any(
                p in (name or "") or p == sentence["rule"] or p in sentence["says"] for p in options.programs)
            if name is None or not is_chosen:
                continue
            program = known[name]
            if not (shutil.which(program[1]) or os.path.exists(program[1])):
                print(f"SKIP {name}: {program[1]} is not here", flush=True)
                continue
            if name not in bases:
                bases[name] = audit(options, folder, program, sentence.get("base", []))
            if bases[name] is None:
                print(f"SKIP {name}: no report", flush=True)
                continue
            promised, virt, rss, verdict = prove(options, folder, sentence, bases[name], program)
            wrong += verdict not in ("holds", "helps", "seen")
            measured = {"promised": mib(promised), "virt": mib(virt), "rss": mib(rss), "verdict": verdict}
            sentence.update(measured)
            row = [sentence["rule"], sentence["category"], sentence["kind"], sentence["says"][:60], name]
            print("| " + " | ".join(row + list(measured.values())) + " |", flush=True)
    if options.write:
        with open(FILE, "w") as file:
            file.write(written(header, sentences))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
