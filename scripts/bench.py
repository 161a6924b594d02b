#!/usr/bin/python3
"""Side-by-side measurements of vmaudit: medians of interleaved rounds, as markdown tables."""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import bench_heap as bench_heap_module
import bench_sampling as bench_sampling_module
import bench_stacks as bench_stacks_module

PEER_FRAMES_SAMPLE = 200


class Bench:
    def __init__(self, options, folder):
        self.vmaudit, self.root, self.rounds, self.folder = options.vmaudit, options.root, options.rounds, folder
        self.workload = options.workload

    def build(self, name):
        binary = os.path.join(self.folder, name)
        if not os.path.exists(binary):
            source = os.path.join(self.root, "tests/programs", name + ".c")
            compiler = "gcc"
            if not os.path.exists(source):
                source, compiler = source + "pp", "g++"
            subprocess.run([compiler, "-O2", "-g", "-fomit-frame-pointer", "-pthread", "-o", binary, source], check=True)
        return binary

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_vmaudit(self, command, *options):
        report = self.path("report.json")
        return [self.vmaudit, "run", "--as-root", "-f", "json", "--report", report, *options, "--", *command]

    def report(self):
        with open(self.path("report.json"), encoding="utf-8") as file:
            return json.load(file)


def output_of(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:6])} … ended with {done.returncode}: {done.stderr[-400:]}")
    return done


def median(values):
    return statistics.median(values) if values else float("nan")


def table(title, header, rows):
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("| --- |" + " ---: |" * (len(header) - 1))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    sys.stdout.flush()


def machine(bench):
    def first_line(*command):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return (done.stdout or done.stderr).strip().splitlines()[0]
        except (OSError, IndexError):
            return None
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                if line.startswith("model name")), "?")
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo", encoding="utf-8")) >> 20
    print(f"- kernel {os.uname().release}, {os.cpu_count()} × {cpu}, {memory} GiB, load {os.getloadavg()[0]:.1f} at the start")
    for command in ((bench.vmaudit, "--version"), ("bpftrace", "--version"), ("perf", "--version"),
                    ("strace", "--version"), ("redis-server", "--version")):
        line = first_line(*command)
        print(f"- {line}" if line else f"- SKIP {command[0]}: not here")
    sys.stdout.flush()


# --- the loop of mmap and munmap under 26 frames


BPFTRACE = """
tracepoint:syscalls:sys_exit_mmap /pid == cpid/ { @s[ustack] = count(); @n = count(); }
tracepoint:syscalls:sys_exit_munmap /pid == cpid/ { @s[ustack] = count(); @n = count(); }
"""


def pair_ns(text):
    """The loop prints one number on a line of its own."""
    return float(re.search(r"^(\d+\.\d)$", text, re.M)[1])


def loop_plain(bench, loop, n):
    return pair_ns(output_of([loop, str(n)]).stdout), None, None


def loop_vmaudit(bench, loop, n):
    ns = pair_ns(output_of(bench.run_vmaudit([loop, str(n)])).stdout)
    events = bench.report()["events"]
    return ns, f"{events['lost']} of {events['seen']}", None


def loop_vmaudit_perf(bench, loop, n):
    """As an ordinary user: the rings are as large as that one may lock."""
    folder = tempfile.mkdtemp(dir=bench.folder)
    for path in (bench.folder, folder):
        os.chmod(path, 0o777)
    binary = shutil.copy(bench.vmaudit, folder)
    report = os.path.join(folder, "report.json")
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
              "env", f"XDG_RUNTIME_DIR={folder}"]
    run = [binary, "run", "--backend", "perf", "-f", "json", "--report", report, "--", loop, str(n)]
    ns = pair_ns(output_of([*nobody, *run]).stdout)
    with open(report, encoding="utf-8") as file:
        events = json.load(file)["events"]
    return ns, f"{events['lost']} of {events['seen']}", None


def loop_notify(bench, loop, n):
    ns = pair_ns(output_of(bench.run_vmaudit([loop, str(n)], "--backend", "notify")).stdout)
    events = bench.report()["events"]
    return ns, f"{events['lost']} of {events['seen']}", None


def frames_vmaudit(bench, loop, *options):
    dump = bench.path("events")
    output_of(bench.run_vmaudit([loop, "100"], "--dump-events", dump, *options))
    with open(dump, encoding="utf-8", errors="replace") as lines:
        stacks = [len(event["frames"]) for event in map(json.loads, lines) if event["op"] in ("mmap", "munmap")]
    return median(stacks[-PEER_FRAMES_SAMPLE:])


def loop_bpftrace(bench, loop, n):
    script = bench.path("loop.bt")
    with open(script, "w", encoding="utf-8") as file:
        file.write(BPFTRACE)
    out = output_of(["bpftrace", "-c", f"{loop} {n}", script]).stdout
    seen = int(re.search(r"@n: (\d+)", out)[1])
    stacks = [(int(m[2]), len(m[1].split())) for m in re.finditer(r"@s\[([^\]]*)\]: (\d+)", out)]
    kept = sum(count for count, _ in stacks)
    frames = max(stacks)[1] if stacks else 0
    return pair_ns(out), f"{seen - kept} of {seen}", frames


def loop_perf(bench, loop, n):
    data = bench.path("perf.data")
    done = output_of(["perf", "record", "-o", data, "--call-graph", "dwarf,16384", "-e",
                      "syscalls:sys_exit_mmap,syscalls:sys_exit_munmap", loop, str(n)])
    stats = output_of(["perf", "report", "-i", data, "--stats"]).stdout
    found = re.search(r"SAMPLE events: +(\d+)", stats)
    if not found:
        raise RuntimeError(f"perf recorded nothing: {(done.stderr + stats).strip()[-120:]}")
    kept = int(found[1])
    script = subprocess.Popen(["perf", "script", "-i", data, "--no-inline", "-F", "comm,event,ip"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    frames, current = [], 0
    for line in script.stdout:
        if line.strip() and line[0] in " \t":
            current += 1
        elif not line.strip() and current:
            frames.append(current)
            current = 0
            if len(frames) > PEER_FRAMES_SAMPLE:
                break
    script.kill()
    script.wait()
    os.unlink(data)
    total = 2 * (n + min(n, 100))
    return pair_ns(done.stdout), f"{max(0, total - kept)} of {total}", median(frames)


def loop_strace(bench, loop, n):
    out = output_of(["strace", "-f", "-o", bench.path("strace"), "-e", "trace=mmap,munmap", loop, str(n)])
    return pair_ns(out.stdout), "0", 0


def loop_strace_k(bench, loop, n):
    log = bench.path("strace")
    out = output_of(["strace", "-f", "-k", "-o", log, "-e", "trace=mmap,munmap", loop, str(n)])
    frames, current = [], 0
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(" > "):
                current += 1
            elif current:
                frames.append(current)
                current = 0
    return pair_ns(out.stdout), "0", median(frames[-PEER_FRAMES_SAMPLE:])


def bench_loop(bench):
    loop = bench.build("loop26")
    tracers = [("untraced", loop_plain, 100000, None), ("vmaudit run", loop_vmaudit, 100000, None),
               ("vmaudit run --backend perf, as nobody", loop_vmaudit_perf, 100000, "setpriv"),
               ("vmaudit run --backend notify", loop_notify, 20000, None),
               ("bpftrace ustack", loop_bpftrace, 50000, "bpftrace"),
               ("perf record --call-graph dwarf,16384", loop_perf, 8000, "perf"),
               ("strace -f", loop_strace, 8000, "strace"), ("strace -f -k", loop_strace_k, 150, "strace")]
    results, failed = {}, {}
    for _ in range(bench.rounds):
        for name, function, n, needs in tracers:
            if needs and not shutil.which(needs):
                failed[name] = "not here"
                continue
            try:
                plain_ns = loop_plain(bench, loop, 20000)[0]
                results.setdefault(name, []).append((plain_ns, *function(bench, loop, n)))
            except (RuntimeError, TypeError, OSError, ValueError, KeyError) as error:
                failed[name] = str(error).replace("\n", " ")[-150:]
    base = median([r[1] for r in results["untraced"]])
    rows = []
    for name, _, n, _ in tracers:
        if name not in results:
            rows.append((name, f"SKIP {failed[name]}", "", "", "", ""))
            continue
        runs = results[name]
        ns = median([r[1] for r in runs])
        # Each run against an untraced one just before it, then the median.
        ratio = median([r[1] / r[0] for r in runs])
        frames = runs[-1][3]
        if name.startswith("vmaudit run"):
            try:
                backend = name.split(",")[0].split()[2:]
                frames = frames_vmaudit(bench, loop, *backend)
            except (RuntimeError, OSError, KeyError, ValueError) as error:
                frames = f"? ({str(error)[-60:]})"
        rows.append((name, f"{ns / 1000:.2f} µs", f"{ratio:.2f} ×" if ratio < 100 else f"{ratio:.0f} ×",
                     runs[-1][2] or "–", "–" if frames is None else frames, n))
    table(f"mmap + munmap of 64 KiB under 26 frames (untraced {base / 1000:.2f} µs a pair)",
          ("tracer", "a pair", "slowdown", "events lost", "frames a stack", "pairs"), rows)


# --- busy threads


def joined(spans):
    out = []
    for start, end in sorted(spans):
        if out and out[-1][1] == start:
            out[-1][1] = end
        else:
            out.append([start, end])
    return out


def same_map(process, path):
    """The report's regions are what the program read of its own maps just before its end."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        spans = [line.split()[0].split("-") for line in lines if "[vsyscall]" not in line]
    regions = [(int(r["start"], 16), int(r["end"], 16)) for r in process["regions"]]
    return joined(regions) == joined((int(start, 16), int(end, 16)) for start, end in spans)


def bench_threads(bench):
    storm, maps, rows = bench.build("storm"), bench.path("maps"), []
    for threads, calls, kind in ((1, 6000, "mixed"), (4, 6000, "mixed"), (16, 3000, "mixed"), (16, 6000, "mixed"),
                                 (32, 6000, "mixed"), (32, 6000, "anon"), (8, 6000, "file"),
                                 (8, 20000, "madvise"), (8, 20000, "mprotect")):
        command = [storm, str(threads), str(calls), maps, kind]
        lost, stacks, seen, same, ratios = [], [], 0, 0, []
        for _ in range(bench.rounds):
            plain = storm_seconds(output_of(command).stderr)
            traced = storm_seconds(output_of(bench.run_vmaudit(command)).stderr)
            ratios.append(traced / plain)
            report = bench.report()
            events = report["events"]
            seen = events["seen"]
            lost.append(events["lost"])
            stacks.append(1 - (events["lost"] + events.get("without_stack", 0)) / seen)
            same += same_map(report["processes"][0], maps)
        rows.append((f"{threads} × {calls:,} {kind}", f"{seen:,}", f"{max(lost):,}", f"{100 * min(stacks):.1f} %",
                     f"{same} of {bench.rounds}", f"{median(ratios):.2f} ×"))
    table(f"Busy threads on {os.cpu_count()} CPUs (the most lost, the fewest stacks of {bench.rounds} runs)",
          ("threads × calls", "events", "lost", "stacks", "regions = maps", "slowdown"), rows)


def storm_seconds(text):
    return float(re.search(r"storm: (\d+\.\d+) s", text)[1])


# --- bystanders


class Held:
    """`vmaudit run` around a program that waits for the end of its input."""

    def __init__(self, bench, *options):
        ends = bench.build("ends")
        self.process = subprocess.Popen(bench.run_vmaudit([ends, "orphan", bench.path("proof")], *options),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def __enter__(self):
        if self.process.stdout.read(6) != b"READY\n":
            raise RuntimeError("the traced program did not start")
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


def bench_bystander(bench):
    program = bench.build("bystander")
    plain, attached = [], []
    for _ in range(2 * bench.rounds):
        plain.append(float(output_of([program, "100000", "10"]).stdout))
        with Held(bench):
            attached.append(float(output_of([program, "100000", "10"]).stdout))
    # The quietest round of each: what else the machine does only ever adds.
    extra = min(attached) - min(plain)
    table("What others pay: a cheap system call of a process that is not traced",
          ("nobody traces", "while vmaudit traces another process", "difference"),
          [(f"{min(plain):.0f} ns", f"{min(attached):.0f} ns", f"{extra:+.0f} ns")])


# --- page faults: --touch


def touch_plain(bench, program, n):
    return pair_ns(output_of([program, str(n)]).stdout), ""


def touch_run(bench, program, n):
    return pair_ns(output_of(bench.run_vmaudit([program, str(n)])).stdout), "none"


def touch_vmaudit(bench, program, n):
    ns = pair_ns(output_of(bench.run_vmaudit([program, str(n)], "--touch")).stdout)
    touch = bench.report()["touch"]
    return ns, f"{touch['faults']} counted, {touch['sampled']} recorded, {touch['lost']} lost"


def touch_perf(bench, program, n):
    data = bench.path("perf.data")
    done = output_of(["perf", "record", "-o", data, "--call-graph", "dwarf,4096", "-e", "exceptions:page_fault_user",
                      program, str(n)])
    stats = output_of(["perf", "report", "-i", data, "--stats"]).stdout
    os.unlink(data)
    kept = re.search(r"SAMPLE events: +(\d+)", stats)
    return pair_ns(done.stdout), f"{kept[1] if kept else 0} recorded"


def touch_perf_trace(bench, program, n):
    log = bench.path("perf.trace")
    out = output_of(["perf", "trace", "-o", log, "-F", "all", "--no-syscalls", program, str(n)]).stdout
    with open(log, "rb") as lines:
        seen = sum(line.count(b"fault [") for line in lines)
    return pair_ns(out), f"{seen} recorded, without stacks"


def bench_touch(bench):
    program, rounds = bench.build("fault_loop"), 40
    tracers = [("untraced", touch_plain, None), ("vmaudit run", touch_run, None),
               ("vmaudit run --touch", touch_vmaudit, None),
               ("perf record --call-graph dwarf,4096", touch_perf, "perf"),
               ("perf trace -F all", touch_perf_trace, "perf")]
    results, failed = {}, {}
    for _ in range(bench.rounds):
        for name, function, needs in tracers:
            if needs and not shutil.which(needs):
                failed[name] = "not here"
                continue
            try:
                plain = touch_plain(bench, program, rounds)[0]
                ns, said = function(bench, program, rounds)
                results.setdefault(name, []).append((ns, ns / plain, said))
            except (RuntimeError, OSError, TypeError) as error:
                failed[name] = str(error)
    rows = []
    for name, _, _ in tracers:
        if name in results:
            runs = results[name]
            rows.append((f"`{name}`", f"{median([r[0] for r in runs]):.0f}", f"{median([r[1] for r in runs]):.2f}×", runs[-1][2]))
        else:
            rows.append((f"`{name}`", "SKIP", "", failed.get(name, "")))
    table(f"First touches: {rounds} × 4,096 page faults under nine frames",
          ("tracer", "ns a fault", "compared with untraced", "page faults of the last round"), rows)
    plain, attached = [], []
    for _ in range(2 * bench.rounds):
        plain.append(touch_plain(bench, program, 5)[0])
        with Held(bench, "--touch"):
            attached.append(touch_plain(bench, program, 5)[0])
    extra = min(attached) - min(plain)
    table("What others pay: a page fault of a process that is not traced",
          ("nobody traces", "while vmaudit runs another process with --touch", "difference"),
          [(f"{min(plain):.0f} ns", f"{min(attached):.0f} ns", f"{extra:+.0f} ns")])


# --- redis-benchmark


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Redis:
    def __init__(self, bench, traced):
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
                   "no", "--daemonize", "no", "--dir", bench.folder]
        self.process = subprocess.Popen(bench.run_vmaudit(command) if traced else command, start_new_session=True,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                time.sleep(0.02)
        self.__exit__()
        raise RuntimeError("redis-server did not start")

    def __exit__(self, *_):
        subprocess.run(["redis-cli", "-h", "127.0.0.1", "-p", str(self.port), "shutdown", "nosave"],
                       capture_output=True, check=False)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def requests_per_second(self):
        out = output_of(["redis-benchmark", "-h", "127.0.0.1", "-p", str(self.port), "--csv", "-n", "60000",
                         "-r", "60000", "-d", "512", "-c", "30", "-t", "set,get"]).stdout
        return {m[1]: float(m[2]) for m in re.finditer(r'^"(SET|GET)","([\d.]+)"', out, re.M)}


def bench_redis(bench):
    if not shutil.which("redis-benchmark"):
        print("\nSKIP redis-benchmark: not here")
        return
    runs = {False: [], True: []}
    for index in range(bench.rounds + 1):
        for traced in ((False, True) if index % 2 else (True, False)):
            with Redis(bench, traced) as server:
                rates = server.requests_per_second()
            if index:  # the first round warms up
                runs[traced].append(rates)
    rows = []
    for test in ("SET", "GET"):
        plain, traced = median([r[test] for r in runs[False]]), median([r[test] for r in runs[True]])
        ratio = median([t[test] / p[test] for t, p in zip(runs[True], runs[False])])
        spread = (max(r[test] for r in runs[False]) - min(r[test] for r in runs[False])) / plain
        rows.append((test, f"{plain:.0f}/s", f"{traced:.0f}/s", f"{100 * (ratio - 1):+.1f} %", f"{100 * spread:.1f} %"))
    table("redis-benchmark against a server started plainly and under `vmaudit run`",
          ("requests", "plain", "vmaudit", "difference", "spread of the plain rounds"), rows)


# --- 65,000 mappings


SLOPE = (1_000, 10_000, 65_000)


def wall_to(path, command):
    """Milliseconds of a whole command that writes there."""
    with open(path, "wb") as out:
        begun = time.monotonic()
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
        took = 1000 * (time.monotonic() - begun)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:6])} … ended with {done.returncode}: {done.stderr[-400:]}")
    return took


def slope_of_snapshots(bench, program):
    rows = []
    for maps in SLOPE:
        with subprocess.Popen([program, str(maps)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdout.read(6)
            snapshot = [bench.vmaudit, "snapshot", "-p", str(process.pid)]
            commands = (("/dev/null", ["cat", f"/proc/{process.pid}/smaps"]),
                        ("/dev/null", ["cat", f"/proc/{process.pid}/maps"]),
                        (bench.path("text"), snapshot),
                        (bench.path("json"), [*snapshot, "-f", "json"]),
                        (bench.path("html"), [*snapshot, "-f", "html"]))
            times = [[] for _ in commands]
            for _ in range(bench.rounds):
                for (path, command), taken in zip(commands, times):
                    taken.append(wall_to(path, command))
            process.stdin.close()
            process.wait()
        smaps, *others = (median(taken) for taken in times)
        rows.append((f"{maps:,}", f"{smaps:.1f}", *(f"{other:.1f}" for other in others), f"{others[1] / smaps:.2f} ×"))
    table("`vmaudit snapshot -p PID` by the number of mappings, whole commands, ms",
          ("mappings", "`cat smaps`", "`cat maps`", "snapshot", "`-f json`", "`-f html`", "snapshot / smaps"), rows)


def slope_of_runs(bench, program):
    rows = []
    recording = bench.path("slope.vmaudit")
    for maps in SLOPE:
        target = [program, str(maps), "nowait"]
        run = [bench.vmaudit, "run", "--as-root", "-o", recording, "--", *target]
        commands = (("/dev/null", target), (bench.path("text"), run),
                    (bench.path("text"), [bench.vmaudit, "report", recording]),
                    (bench.path("text"), [bench.vmaudit, "report", "--replay", recording]),
                    (bench.path("json"), [bench.vmaudit, "report", "-f", "json", recording]),
                    (bench.path("html"), [bench.vmaudit, "report", "-f", "html", recording]))
        times = [[] for _ in commands]
        for _ in range(bench.rounds):
            for (path, command), taken in zip(commands, times):
                if command is run and os.path.exists(recording):
                    os.remove(recording)
                taken.append(wall_to(path, command))
        rows.append((f"{maps:,}", *(f"{median(taken):.1f}" for taken in times)))
    table("`vmaudit run -o FILE` and its reports by the number of mappings, whole commands, ms",
          ("mappings", "untraced", "`run`", "`report`", "`report --replay`", "`report -f json`", "`report -f html`"), rows)


def bench_manymaps(bench):
    program, maps = bench.build("manymaps"), SLOPE[-1]
    slope_of_snapshots(bench, program)
    slope_of_runs(bench, program)
    untraced, traced, said = [], [], ""
    for _ in range(bench.rounds):
        begun = time.monotonic()
        output_of([program, str(maps), "nowait"])
        untraced.append(time.monotonic() - begun)
        begun = time.monotonic()
        done = output_of(bench.run_vmaudit([program, str(maps), "nowait"], "-v"))
        traced.append(time.monotonic() - begun)
        said = done.stderr
    table(f"A process with {maps} mappings",
          ("what", "ms"),
          [("the program, untraced", f"{1000 * median(untraced):.0f}"),
           ("the program under `vmaudit run -f json`, report included", f"{1000 * median(traced):.0f}")])
    timing = [line for line in said.splitlines() if re.search(r"\d ?(ms|µs|us|s)\b", line)]
    print("\n`-v` said:\n")
    for line in timing or ["(nothing about time)"]:
        print(f"    {line}")


# --- the shortest run, and what vmaudit itself needs


def wall(command, rounds):
    times = []
    for _ in range(rounds):
        begun = time.monotonic()
        output_of(command)
        times.append(time.monotonic() - begun)
    return 1000 * median(times)


def bench_start(bench):
    rounds = 3 * bench.rounds
    table("The shortest run", ("command", "ms"),
          [("`/bin/true`", f"{wall(['/bin/true'], rounds):.1f}"),
           ("`vmaudit run -- /bin/true`", f"{wall([bench.vmaudit, 'run', '--as-root', '--', '/bin/true'], rounds):.1f}")])


def watch_cpu(pid, seen):
    """Keeps vmaudit's own CPU time (not its child's) as long as it can be read."""
    tick = os.sysconf("SC_CLK_TCK")
    while not seen.get("stop"):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            if fields[0] == "Z":
                return
            seen["cpu"] = (int(fields[11]) + int(fields[12])) / tick
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
                peak = re.search(r"VmHWM:\s+(\d+)", file.read())
            seen["rss"] = int(peak[1]) if peak else seen.get("rss", 0)
        except (OSError, IndexError):
            return
        time.sleep(0.01)


def bench_own(bench):
    loop, many = bench.build("loop26"), bench.build("manymaps")
    rows = []
    for name, command in (("400,000 events (loop of 200,000 pairs)", [loop, "200000"]),
                          ("65,000 mappings", [many, "65000", "nowait"]), ("`/bin/true`", ["/bin/true"])):
        process = subprocess.Popen(bench.run_vmaudit(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seen = {}
        thread = threading.Thread(target=watch_cpu, args=(process.pid, seen))
        begun = time.monotonic()
        thread.start()
        process.wait()
        seen["stop"] = True
        thread.join()
        events = bench.report()["events"]["seen"]
        rows.append((name, events, f"{time.monotonic() - begun:.2f} s", f"{seen.get('cpu', 0):.2f} s",
                     f"{seen.get('rss', 0) / 1024:.0f} MiB"))
    table("What vmaudit itself needs", ("program", "events", "wall", "CPU time of vmaudit", "its peak RSS"), rows)


def bench_stacks(bench):
    table("Stacks that equal the BPF backend's", ("program, backend", "stacks", "equal", "a marked prefix",
                                                  "different", "calls only there"),
          list(bench_stacks_module.rows(bench.vmaudit, bench.root, bench.folder)))


def bench_heap(bench):
    if not bench.workload:
        table("malloc + free of 16 to 1,039 bytes under ten frames", ("tracer", "a pair", "more than untraced", "lost",
                                                                    "frames a stack", "pairs"),
              list(bench_heap_module.rows(bench)))
    table("CPU time and the peak of RSS of a program under what traces its heap",
          ("program", "tracer", "CPU", "× its base", "more a call", "RSS", "lost"), list(bench_heap_module.workloads(bench)))


def bench_sampling(bench):
    table("Sampled heaps against the exact figure, over 30 runs each: ratios, with the error that the report states",
          ("program", "`--sample`", "exact", "mean", "spread", "stated error", "mean is off by", "within 1, 2 errors",
           "allocated", "peak"), list(bench_sampling_module.rows(bench)))


# A process begins with the largest resident set of the one that started it (`exec_mmap` of fs/exec.c): one that has
# nothing but what this needs.
STARTER = """import os, sys, time
begun = time.monotonic()
_, status, used = os.wait4(os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ), 0)
with open(sys.argv[1], "w") as file:
    print(time.monotonic() - begun, used.ru_maxrss, os.waitstatus_to_exitcode(status), file=file)
"""


def peak_of(command):
    """Wall time in s and the largest resident set in MiB, the traced processes' not included."""
    with tempfile.NamedTemporaryFile("r") as result:
        starter = [sys.executable, "-I", "-S", "-c", STARTER, result.name]
        subprocess.run([*starter, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        took, peak, code = result.read().split()
    if code != "0":
        raise RuntimeError(f"{' '.join(command[:6])} … ended with {code}")
    return float(took), int(peak) / 1024


def bench_memory(bench):
    many, deep = bench.build("many_children"), bench.build("deep_stacks")
    loop = "i=0; while [ $i -lt {} ]; do /bin/true; i=$((i+1)); done"
    programs = [(f"5,000 mappings, {count} children", [many, "5000", str(count)]) for count in (10, 100, 300)]
    programs += [(f"{count:,} × /bin/true", ["sh", "-c", loop.format(count)]) for count in (1, 1000, 5000, 20000)]
    programs += [(f"{count:,} stacks of 120 frames, each another", [deep, str(count), "60"]) for count in (200000, 800000)]
    rows = []
    for name, command in programs:
        recording = bench.path("memory.rec")
        kept = []
        for options in ([], ["-o", recording]):
            # The report as text: what is requested is small.
            run = [bench.vmaudit, "run", "--as-root", *options, "--", *command]
            kept.append(peak_of(run))
        took, reading = peak_of([bench.vmaudit, "report", recording])
        printing = peak_of([bench.vmaudit, "events", recording])
        size = os.path.getsize(recording) / (1 << 20)
        rows.append((name, f"{kept[0][1]:.0f} MiB", f"{kept[1][1]:.0f} MiB", f"{kept[0][0]:.1f} s", f"{size:.1f} MiB",
                     f"{took:.2f} s", f"{reading:.0f} MiB", f"{printing[0]:.1f} s", f"{printing[1]:.0f} MiB"))
        for path in (recording, recording + ".old"):
            if os.path.exists(path):
                os.unlink(path)
    table("Memory, by how much was traced", ("program", "`run`", "`run -o`", "time", "recording", "`report REC`",
                                             "its memory", "`events REC`", "its memory"), rows)


# --- short processes


def interleaved(commands, rounds, before=lambda: None):
    """Medians of wall times in s and of peaks in MiB, by name."""
    kept = {name: [] for name, _ in commands}
    for _ in range(rounds):
        for name, command in commands:
            before()
            kept[name].append(peak_of(command))
    return {name: tuple(median(part) for part in zip(*both)) for name, both in kept.items()}


def bench_short(bench):
    count = 1000
    loop = ["sh", "-c", f"i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done"]
    run = [bench.vmaudit, "run", "--as-root"]
    commands = [("untraced", loop), ("`run`", [*run, "--", *loop]), ("`run --min-virt 0`", [*run, "--min-virt", "0", "--", *loop]),
                ("`run --no-exit-hold`", [*run, "--no-exit-hold", "--", *loop])]
    found = interleaved(commands, bench.rounds)
    plain = found["untraced"][0]
    table(f"{count:,} × /bin/true", ("", "s", "× untraced", "more, ms a process"),
          [(name, f"{took:.2f}", f"{took / plain:.2f}", f"{1000 * (took - plain) / count:.2f}") for name, (took, _) in found.items()])


NODE = ("const all = []; for (let i = 0; i < 3e6; i++) all.push({i}); "
        "for (let i = 0; i < 20; i++) all.sort((a, b) => a.i - b.i); require('zlib').gzipSync(JSON.stringify(all.slice(0, 3e5)))")
JAVA = """import java.util.*;
class Load {
    public static void main(String[] words) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 8; t++) threads.add(new Thread(() -> {
            Map<Integer, String> map = new HashMap<>();
            for (int i = 0; i < 1_000_000; i++) map.put(i % 200_000, "value " + i);
        }));
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
    }
}
"""


def bench_runtimes(bench):
    load = bench.path("Load.java")
    with open(load, "w", encoding="utf-8") as file:
        file.write(JAVA)
    page = "data:text/html,<script>document.write([...Array(20000).keys()].join('<br>'))</script>"
    programs = [("Node", ["node", "-e", NODE]), ("JVM, compiling and running a program", ["java", load]),
                ("Chromium, a page", ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                                      f"--user-data-dir={bench.path('profile')}", page])]
    rows = []
    for name, command in programs:
        if not shutil.which(command[0]):
            print(f"- SKIP {command[0]}: not here")
            continue
        found = interleaved([("plain", command), ("run", bench.run_vmaudit(command))], bench.rounds)
        events = bench.report()["events"]
        (plain, _), (traced, memory) = found["plain"], found["run"]
        rows.append((name, f"{plain:.2f}", f"{traced:.2f}", f"{traced / plain:.2f}", f"{events['lost']} of {events['seen']:,}",
                     events.get("without_stack", 0), f"{memory:.0f} MiB"))
    table("Runtimes under `run`", ("program", "untraced, s", "traced, s", "×", "lost", "without stack", "peak of all"), rows)


def source_of(bench, package):
    """Debian's source of a package, unpacked by apt with lists of its own."""
    folder = bench.path("source")
    os.makedirs(os.path.join(folder, "lists/partial"))
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    sources = os.path.join(folder, "sources.list")
    with open(sources, "w", encoding="utf-8") as file:
        file.writelines(f"deb-src {line}\n" for line in sorted(set(output_of(command).stdout.splitlines())))
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/nonexistent",
           "-o", f"Dir::State::lists={folder}/lists"]
    output_of([*apt, "update"])
    output_of([*apt, "source", package], cwd=folder)
    return next(entry.path for entry in os.scandir(folder) if entry.is_dir() and entry.name.startswith(package + "-"))


def bench_build(bench):
    source, work = source_of(bench, "bash"), bench.path("build")

    def fresh():
        shutil.rmtree(work, ignore_errors=True)
        os.mkdir(work)
    build = ["sh", "-c", f"cd {work} && {source}/configure -q >/dev/null 2>&1 && make -s -j2 >/dev/null 2>&1 && test -x bash"]
    run = [bench.vmaudit, "run", "--as-root", "--report", bench.path("report.json"), "-f", "json"]
    found = interleaved([("untraced", build), ("`run`", [*run, "--", *build])], min(bench.rounds, 3), fresh)
    report = bench.report()
    events = report["events"]
    plain = found["untraced"][0]
    rows = [(name, f"{took:.1f}", f"{took / plain:.2f}", f"{memory:.0f} MiB" if name != "untraced" else "–")
            for name, (took, memory) in found.items()]
    table(f"bash: configure and make -j2, {len(report['processes']):,} processes, {events['seen']:,} events, "
          f"{events['lost']} lost", ("", "s", "× untraced", "peak, the compiler's included"), rows)


PARTS = {"loop": bench_loop, "threads": bench_threads, "bystander": bench_bystander, "touch": bench_touch, "redis": bench_redis,
         "manymaps": bench_manymaps, "start": bench_start, "own": bench_own, "stacks": bench_stacks, "heap": bench_heap,
         "sampling": bench_sampling,
         "memory": bench_memory, "short": bench_short, "build": bench_build, "runtimes": bench_runtimes}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vmaudit", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; may be given several times")
    parser.add_argument("--workload", help="of the part heap: only the programs whose name contains this")
    options = parser.parse_args()
    # We are in a mount namespace of our own (bench.sh): bpftrace searches for tracefs here.
    if not os.path.exists("/sys/kernel/debug/tracing"):
        subprocess.run(["mount", "-t", "debugfs", "none", "/sys/kernel/debug"], capture_output=True, check=False)
    failed = False
    with tempfile.TemporaryDirectory(prefix="vmaudit-bench.") as folder:
        bench = Bench(options, folder)
        machine(bench)
        for name in options.only or PARTS:
            try:
                PARTS[name](bench)
            except (RuntimeError, OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
                print(f"\nSKIP {name}: {error}", flush=True)
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
