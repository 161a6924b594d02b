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
           ("vmaudit heap (exact)", vmaudit(), 200_000, None),
           ("vmaudit heap --sample 512k", vmaudit("--sample", "512k"), 200_000, None),
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
