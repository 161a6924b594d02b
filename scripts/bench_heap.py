"""What a pair of malloc and free costs under each tracer of the heap, in one run."""

import json
import os
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


WORKLOADS = [("malloc + free of one size after the other", ["heap_loop", "3000000"]),
             ("20,000 live blocks, 1,024 paths", ["heap_churn", "20000", "1000000"]),
             ("1,000,000 live blocks, 1,024 paths", ["heap_churn", "1000000", "1000000"]),
             ("C++: strings, vectors, maps", ["heap_maps", "40"])]


def under(bench, tracer, command):
    """The command with what traces it in front."""
    if tracer == "heaptrack":
        return ["heaptrack", "--raw", "-o", os.path.join(bench.folder, "heaptrack"), *command]
    if tracer == "untraced":
        return command
    options = tracer.split()[2:]
    return [bench.vmaudit, "heap", "--as-root", "--report", os.path.join(bench.folder, "heap.txt"), *options, "--", *command]


def workloads(bench):
    """(program, tracer, ns, added, RSS), medians of interleaved rounds. The programs print both."""
    tracers = ["untraced", "vmaudit heap", "vmaudit heap --sample 512k", "heaptrack"]
    for name, (program, *arguments) in WORKLOADS:
        command = [bench.build(program), *arguments]
        seen = {}
        for _ in range(bench.rounds):
            for tracer in tracers:
                if tracer == "heaptrack" and not shutil.which(tracer):
                    continue
                text = output_of(under(bench, tracer, command))
                for left in os.listdir(bench.folder):
                    if left.startswith("heaptrack"):
                        os.unlink(os.path.join(bench.folder, left))
                found = re.search(r"^(\d+\.\d)\n(\d+)?", text, re.M)
                seen.setdefault(tracer, []).append((float(found[1]), int(found[2] or 0)))
        base = statistics.median(ns for ns, _ in seen["untraced"])
        for tracer, runs in seen.items():
            ns = statistics.median(ns for ns, _ in runs)
            rss = statistics.median(kib for _, kib in runs)
            yield name, tracer, f"{ns:.0f}", f"+{ns - base:.0f}", f"{rss / 1024:.0f} MiB" if rss else "–"
