"""How far a sampled heap's figures are from the exact ones, over many runs, and how far they say that they may be."""

import json
import math
import os
import statistics
import subprocess
import sys

PYTHON = """
import os
class Node:
    def __init__(self, name):
        self.name, self.edges = name, {}
kept = [Node('node %d' % i) for i in range(20000)]
for i, node in enumerate(kept):
    for step in range(i % 7):
        node.edges['edge %d' % step] = kept[i * step % len(kept)]
del kept[::3]
os._exit(0)
"""

# Each does the same whenever it runs.
PROGRAMS = [("heap_churn", ["20000", "20000"], {}),
            ("heap_threads", ["4", "1", "40000"], {}),
            ("python3", ["-S", "-c", PYTHON], {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}),
            ("perl", ["-MPOSIX", "-e", "$h{$_ % 7000} .= 'x' x ($_ % 300) for 1..60000; delete $h{$_ * 2} for 1..1000; "
                      "POSIX::_exit(0)"], {"PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0"})]
SIZES = ["512k", "64k"]
RUNS = 30


def figures(bench, command, environment, *options):
    report = os.path.join(bench.folder, "sampled.json")
    done = subprocess.run([bench.vmaudit, "heap", "--as-root", "-f", "json", "--report", report, *options, "--", *command],
                          capture_output=True, text=True, errors="replace", check=False,
                          env={**os.environ, **environment})
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-200:]}")
    with open(report, encoding="utf-8") as file:
        process = json.load(file)["processes"][0]
    shown, totals = process["shown"], process["totals"]
    return {"outstanding": shown["bytes"], "blocks": shown["blocks"], "error": shown["standard_error"],
            "allocated": totals["allocated_bytes"], "peak": totals["peak_bytes"]}


def rows(bench):
    """(program, sample, exact bytes, mean, spread, stated error, off, within 1 and 2 errors, mean allocated, mean peak)"""
    for name, arguments, environment in PROGRAMS:
        binary = bench.build(name) if name.startswith("heap_") else name
        command = [binary, *arguments]
        try:
            truths = [figures(bench, command, environment) for _ in range(3)]
        except (RuntimeError, OSError) as error:
            yield name, f"SKIP {error}", "", "", "", "", "", "", "", ""
            continue
        truth = {key: statistics.median(found[key] for found in truths) for key in truths[0]}
        for size in SIZES:
            runs = [figures(bench, command, environment, "--sample", size) for _ in range(RUNS)]
            ratio = {key: [run[key] / truth[key] for run in runs] for key in ("outstanding", "allocated", "peak")}
            mean, spread = statistics.mean(ratio["outstanding"]), statistics.stdev(ratio["outstanding"])
            stated = statistics.mean(run["error"] for run in runs) / truth["outstanding"]
            # In errors of the mean of so many runs.
            off = (mean - 1) / (spread / math.sqrt(RUNS))
            within = [sum(abs(run["outstanding"] - truth["outstanding"]) <= times * run["error"] for run in runs)
                      for times in (1, 2)]
            print(name, size, [round(value, 4) for value in ratio["outstanding"]], file=sys.stderr)
            yield (name, size, f"{truth['outstanding']:,.0f}", f"{mean:.3f}", f"{spread:.3f}", f"{stated:.3f}",
                   f"{off:+.1f}", f"{within[0]}, {within[1]} of {RUNS}",
                   f"{statistics.mean(ratio['allocated']):.3f}", f"{statistics.mean(ratio['peak']):.3f}")
