"""What a pair of malloc and free costs under each tracer of the heap, in one run."""

import json
import os
import shlex
import re
import shutil
import statistics
import subprocess

BPFTRACE = """
uprobe:{libc}:malloc /pid == cpid/ {{ @size[tid] = arg0; }}
uretprobe:{libc}:malloc /@size[tid]/ {{
  @block[retval] = @size[tid]; @out[ustack] = sum(@size[tid]); @n = count(); delete(@size[tid]); }}
uprobe:{libc}:free /pid == cpid/ {{ delete(@block[arg0]); }}
"""


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {done.returncode}: {done.stderr[-200:]}")
    return done.stdout


def pair_ns(text):
    """The loop prints one number on a line of its own."""
    return float(re.search(r"^(\d+\.\d)$", text, re.M)[1])


def plain(_, loop, n):
    return pair_ns(output_of([loop, str(n)])), "–", "–"


def vmaudit(*options):
    def run(bench, loop, n):
        report = os.path.join(bench.folder, "heap.json")
        text = output_of([bench.vmaudit, "heap", "--as-root", "-f", "json", "--report", report, *options, "--",
                          loop, str(n)])
        with open(report, encoding="utf-8") as file:
            found = json.load(file)
        depth = max((len(stack["frames"]) for stack in found["stacks"]), default=0)
        return pair_ns(text), losses(found), depth
    return run


def losses(found):
    events = found["events"]
    lost = sum(value for key, value in events.items() if key.startswith("lost") and isinstance(value, int))
    return f"{lost} of {events['seen']}"


def bpftrace(bench, loop, n):
    libc = next(line.split()[2] for line in output_of(["ldd", loop]).splitlines() if "libc.so.6" in line)
    script = os.path.join(bench.folder, "heap.bt")
    with open(script, "w", encoding="utf-8") as file:
        file.write(BPFTRACE.format(libc=os.path.realpath(libc)))
    out = output_of(["bpftrace", "-c", f"{loop} {n}", script])
    seen = int(re.search(r"@n: (\d+)", out)[1])
    stacks = [len(found[1].split("\n")) - 2 for found in re.finditer(r"@out\[([^\]]*)\]: \d+", out)]
    total = n + min(n, 100)
    return pair_ns(out), f"{max(0, total - seen)} of {total}", max(stacks, default=0)


def heaptrack(bench, loop, n):
    data = os.path.join(bench.folder, "heaptrack")
    out = output_of(["heaptrack", "--raw", "-o", data, loop, str(n)])
    for name in os.listdir(bench.folder):
        if name.startswith("heaptrack"):
            os.unlink(os.path.join(bench.folder, name))
    return pair_ns(out), "–", "–"


TRACERS = [("untraced", plain, 3_000_000, None),
           ("vmaudit heap", vmaudit(), 3_000_000, None),
           ("vmaudit heap --sample 512k", vmaudit("--sample", "512k"), 10_000_000, None),
           ("vmaudit heap --method uprobes", vmaudit("--method", "uprobes"), 200_000, None),
           ("vmaudit heap --method uprobes --sample 512k", vmaudit("--method", "uprobes", "--sample", "512k"), 200_000,
            None),
           ("vmaudit heap --combined", vmaudit("--combined"), 200_000, None),
           ("bpftrace uprobes, ustack", bpftrace, 100_000, "bpftrace"),
           ("heaptrack", heaptrack, 200_000, "heaptrack")]


def rows(bench):
    """(tracer, ns a pair, added, lost, frames), medians of interleaved rounds."""
    loop = bench.build("heap_loop")
    results, failed = {}, {}
    for _ in range(bench.rounds):
        for name, function, n, needs in TRACERS:
            if needs and not shutil.which(needs):
                failed[name] = "not here"
                continue
            try:
                results.setdefault(name, []).append(function(bench, loop, n))
            except (RuntimeError, TypeError, OSError, ValueError, KeyError) as error:
                failed[name] = str(error).replace("\n", " ")[-150:]
    if not results.get("untraced"):
        raise RuntimeError(f"heap_loop: {failed.get('untraced')}")
    base = statistics.median(found[0] for found in results["untraced"])
    for name, _, n, _ in TRACERS:
        if not results.get(name):
            yield name, f"SKIP {failed[name]}", "", "", "", ""
            continue
        runs = results[name]
        ns = statistics.median(found[0] for found in runs)
        yield name, f"{ns:.0f} ns", f"+{max(0, ns - base):.0f} ns", runs[-1][1], runs[-1][2], n


# Objects of several sizes, and texts; six times, the former ones freed.
PYTHON = """
class Node:
    def __init__(self, name):
        self.name, self.edges = name, {}
for turn in range(6):
    kept = [Node('node %d' % i) for i in range(60000)]
    for i, node in enumerate(kept):
        for step in range(i % 5):
            node.edges['edge %d' % step] = kept[i * step % len(kept)]
    text = ','.join(sorted(node.name for node in kept)).split(',')
"""
REDIS = """
cd "$1" && rm -f socket && { redis-server --port 0 --unixsocket "$1/socket" --save '' --appendonly no --dir "$1" >/dev/null & }
until redis-cli -s "$1/socket" ping 2>/dev/null | grep -q PONG; do kill -0 $! || exit 1; sleep 0.05; done
redis-benchmark -s "$1/socket" -t set -n 200000 -r 100000 -d 300 -q >/dev/null
redis-cli -s "$1/socket" shutdown nosave; wait
"""

# (name, command, how often it allocates)
WORKLOADS = [("malloc + free, one size after the other", ["heap_loop", "2000000"], 2_000_000),
             ("two threads, 2,000,000 blocks of 100 bytes kept", ["heap_threads", "2", "1", "2000000"], 4_000_000),
             ("20,000 live blocks, 1,024 paths", ["heap_churn", "20000", "1000000"], 1_020_000),
             ("1,000,000 live blocks, 1,024 paths", ["heap_churn", "1000000", "1000000"], 2_000_000),
             ("C++: strings, vectors, maps", ["heap_maps", "40"], None),
             ("python3, PYTHONMALLOC=malloc", ["PYTHON"], None),
             ("redis-server, 200,000 SET", ["REDIS"], None)]

# Seconds: what takes longer hangs.
LONGEST = 600

HEAPTRACK = "/usr/lib/heaptrack/libheaptrack_preload.so"
TCMALLOC, JEMALLOC = "libtcmalloc.so.4", "libjemalloc.so.2"


class Tracer:
    """`inner`: the environment of the program alone. `base`: whom it is compared with. `slow`: not for what allocates
    millions of times."""

    def __init__(self, name, wrap=None, env=None, inner=None, base="untraced", slow=False, only=None, needs=None):
        self.name, self.wrap, self.env, self.base = name, wrap or (lambda bench, command: command), env or {}, base
        self.inner = [f"{key}={value}" for key, value in (inner or {}).items()]
        self.slow, self.only, self.needs = slow, only, needs


def heap_with(*options):
    def wrap(bench, command):
        report = os.path.join(bench.folder, "heap.json")
        return [bench.vmaudit, "heap", "--as-root", "-f", "json", "--report", report, *options, "--", *command]
    return wrap


def library(name):
    path = os.path.join("/usr/lib/x86_64-linux-gnu", name)
    return path if os.path.exists(path) else None


def peers(bench):
    memray = os.environ.get("MEMRAY") or shutil.which("memray")
    data = os.path.join(bench.folder, "heaptrack")
    all_of_them = [
        Tracer("untraced"),
        Tracer("`vmaudit heap`", heap_with()),
        Tracer("`vmaudit heap --sample 512k`", heap_with("--sample", "512k")),
        Tracer("`vmaudit heap --method uprobes`", heap_with("--method", "uprobes"), slow=True),
        # As its script does it, which also compresses what is written here.
        Tracer("heaptrack", inner={"LD_PRELOAD": HEAPTRACK, "DUMP_HEAPTRACK_OUTPUT": data},
               needs=os.path.exists(HEAPTRACK) or None),
        Tracer("memray", only="PYTHON", needs=memray),
        Tracer("memray --native", only="PYTHON", needs=memray),
    ]
    if library(TCMALLOC):
        preload = {"LD_PRELOAD": library(TCMALLOC)}
        profile = {**preload, "HEAPPROFILE": os.path.join(bench.folder, "gperftools")}
        all_of_them += [Tracer("tcmalloc, untraced", env=preload),
                        Tracer("gperftools' HEAPPROFILE", env=profile, base="tcmalloc, untraced", slow=True)]
    if library(JEMALLOC):
        preload = {"LD_PRELOAD": library(JEMALLOC)}
        profile = {**preload, "MALLOC_CONF": "prof:true,lg_prof_sample:19,prof_final:false"}
        all_of_them += [Tracer("jemalloc, untraced", env=preload),
                        Tracer("jemalloc's prof, 512 KiB", env=profile, base="jemalloc, untraced")]
    return all_of_them


def losses_of(bench, tracer):
    if "vmaudit" not in tracer.name:
        return "–"
    with open(os.path.join(bench.folder, "heap.json"), encoding="utf-8") as file:
        return losses(json.load(file))


def command_of(bench, tracer, words):
    measured = [bench.build("measured"), os.path.join(bench.folder, "measured.out")]
    env = {}
    inner = ["env", *tracer.inner] if tracer.inner else []
    if words == ["PYTHON"]:
        memray = os.environ.get("MEMRAY") or shutil.which("memray")
        # The same interpreter for all.
        python = os.path.join(os.path.dirname(memray), "python3") if memray else "python3"
        # Not a script that starts it: heaptrack takes its library out of the environment of what it is in.
        said = subprocess.run([python, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=True)
        python = said.stdout.strip()
        script = os.path.join(bench.folder, "nodes.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(PYTHON)
        env = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}
        command = [python, script]
        if tracer.name.startswith("memray"):
            command = [python, "-m", "memray", "run", "-q", "-f", *tracer.name.split()[1:],
                       "-o", os.path.join(bench.folder, "memray.bin"), script]
    elif words == ["REDIS"]:
        folder = os.path.join(bench.folder, "redis")
        os.makedirs(folder, exist_ok=True)
        # Its own allocator is jemalloc, linked; the client runs at the same time, under no tracer.
        server = shlex.join(tracer.wrap(bench, [*measured, *inner, "redis-server"]))
        return ["sh", "-c", REDIS.replace("redis-server", server, 1), "sh", folder], env
    else:
        command = [bench.build(words[0]), *words[1:]]
    return tracer.wrap(bench, [*measured, *inner, *command]), env


def run_once(bench, tracer, words):
    command, env = command_of(bench, tracer, words)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False,
                          env={**os.environ, **env, **tracer.env}, timeout=LONGEST)
    if done.returncode:
        raise RuntimeError(f"{tracer.name}: ended with {done.returncode}: {done.stderr[-200:]}")
    with open(os.path.join(bench.folder, "measured.out"), encoding="utf-8") as file:
        cpu, kib = map(int, file.read().split())
    lost = losses_of(bench, tracer)
    for left in os.listdir(bench.folder):
        if left.startswith(("heaptrack", "gperftools", "memray")):
            os.unlink(os.path.join(bench.folder, left))
    return cpu, kib, lost


def workloads(bench):
    """(program, tracer, CPU, x, added a call, RSS, lost): medians of interleaved rounds; CPU and RSS of the program alone."""
    for name, words, calls in WORKLOADS:
        if bench.workload and bench.workload not in name:
            continue
        seen, failed = {}, {}
        tracers = [tracer for tracer in peers(bench) if tracer.only in (None, words[0])]
        if words == ["REDIS"] and not shutil.which("redis-benchmark"):
            yield name, "SKIP no redis-benchmark", "", "", "", "", ""
            continue
        for _ in range(bench.rounds):
            for tracer in tracers:
                if tracer.needs is None and tracer.name.split()[0] in ("heaptrack", "memray"):
                    failed[tracer.name] = "not here"
                elif tracer.slow and (calls or 10**9) > 2_500_000:
                    failed[tracer.name] = "left out: microseconds a call"
                else:
                    try:
                        seen.setdefault(tracer.name, []).append(run_once(bench, tracer, words))
                    except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                        failed[tracer.name] = str(error).replace("\n", " ")[-150:]
        middle = {who: [statistics.median(run[part] for run in runs) for part in (0, 1)] for who, runs in seen.items()}
        for tracer in tracers:
            if tracer.name not in middle or tracer.base not in middle:
                yield name, tracer.name, f"SKIP {failed.get(tracer.name)}", "", "", "", ""
                continue
            (cpu, kib), (base, base_kib) = middle[tracer.name], middle[tracer.base]
            added = f"+{(cpu - base) / calls:.0f} ns" if calls else "–"
            is_base = tracer.name in ("untraced", tracer.base) or tracer.name.endswith("untraced")
            yield (name, tracer.name, f"{cpu / 1e9:.2f} s", "" if is_base else f"{cpu / base:.2f} ×",
                   "" if is_base else added, f"{kib / 1024:.0f} MiB" + ("" if is_base else f" ({(kib - base_kib) / 1024:+.0f})"),
                   seen[tracer.name][-1][2])
