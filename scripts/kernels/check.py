#!/usr/bin/env python3
"""Judges what a guest's sets left behind: check.py FOLDER SET... prints "SET<TAB>WORD" for each, and
"!<TAB>SET<TAB>what is wrong" below. Words that a table can be compared by:

  exact    it is what the programs and the kernel say     refused  vmaudit said that it cannot, exit 125
  lost     some is missing, and the report says so        drift    the report says that its books are not the kernel's
  fails    another exit status, or no report              wrong    some is missing or false, and nothing says so
  hangs    it was killed after its time

Folders and files: scripts/kernels/guest/sets.sh.
"""

import json
import os
import re
import sys

WORST = ["exact", "refused", "lost", "drift", "fails", "wrong", "hangs"]


class Bad(Exception):
    """A word and the reason for it."""

    def __init__(self, word, why):
        super().__init__(why)
        self.word = word


class Set:
    """The files of one set."""

    def __init__(self, folder, name):
        self.folder = os.path.join(folder, name)
        self.name = name
        self.words = []
        self.notes = []

    def text(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def names(self, suffix):
        return sorted(n[: -len(suffix)] for n in os.listdir(self.folder) if n.endswith(suffix))

    def ran(self, name):
        """Its exit status is 0, or Bad."""
        status = int(self.text(name + ".rc").split()[0])
        said = self.text(name + ".err").strip().splitlines()
        last = next((line for line in reversed(said) if "vmaudit:" in line), said[-1] if said else "")
        if status == 137:
            raise Bad("hangs", f"{name} was killed after its time")
        if status == 125:
            raise Bad("refused", " ".join(said)[:400])
        if status:
            raise Bad("fails", f"exit status {status} of {name}: {last[:300]}")

    def report(self, name):
        self.ran(name)
        return json.loads(self.text(name + ".json"))

    def attempt(self, check, *arguments):
        """Runs one check; what it raises becomes a word of this set."""
        name = arguments[0] if arguments and isinstance(arguments[0], str) else check.__name__
        try:
            check(self, *arguments)
            self.words.append("exact")
        except Bad as bad:
            self.words.append(bad.word)
            self.notes.append((name, str(bad)))
        except (OSError, ValueError, LookupError, TypeError) as error:
            self.words.append("fails")
            self.notes.append((name, f"{type(error).__name__}: {error}"))

    def word(self):
        return max(self.words, key=WORST.index) if self.words else "fails"


def spans(lines):
    """(start, end, rights), sorted; neighbours of equal rights are one."""
    merged = []
    for start, end, prot in sorted(lines):
        if merged and merged[-1][1] == start and merged[-1][2] == prot:
            merged[-1] = (merged[-1][0], end, prot)
        else:
            merged.append((start, end, prot))
    return merged


def spans_of_maps(text):
    rows = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 5 and "-" in fields[0] and not line.endswith("[vsyscall]"):
            start, end = (int(part, 16) for part in fields[0].split("-"))
            rows.append((start, end, fields[1]))
    return spans(rows)


def regions(process):
    return [(int(r["start"], 16), int(r["end"], 16), r) for r in process["regions"]]


def spans_of_regions(process):
    return spans((start, end, r["prot"]) for start, end, r in regions(process))


def same_spans(process, text):
    ours, theirs = spans_of_regions(process), spans_of_maps(text)
    if ours != theirs:
        only = [f"{a:#x}-{b:#x} {p} only in the {where}" for where, mine, other in
                (("report", ours, theirs), ("maps", theirs, ours)) for a, b, p in mine if (a, b, p) not in other]
        raise Bad("wrong", f"pid {process['pid']}: {len(only)} ranges differ: {'; '.join(only[:3])}")


def nothing_lost(report):
    """With perf and notify a busy machine costs stacks, which counts as lost; calls show elsewhere."""
    events = report["events"]
    if events["lost"] and report.get("backend") not in ("perf", "notify"):
        raise Bad("lost", f"{events['lost']} of {events['seen']} events lost")


def no_drift(process, keys=("ledger_drift", "unknown", "preexisting")):
    for key in keys:
        if process["coverage"][key]:
            raise Bad("drift", f"pid {process['pid']}: {key} is {process['coverage'][key]}")


def names_of(report, stack):
    return [frame["symbol"] for frame in report["stacks"][stack]["frames"]] if stack is not None else []


def resident(report, known):
    """Bytes resident in each range that known.c wrote down."""
    process = report["processes"][0]
    for line in known.splitlines():
        address, length, expected, kind = line.split()
        start, end = int(address, 16), int(address, 16) + int(length)
        inside = [r for a, b, r in regions(process) if start <= a and b <= end]
        virt, rss = sum(r["virt"] for r in inside), sum(r["rss"] for r in inside)
        # A region may be larger than the range where neighbours are one.
        if kind == "elsewhere":
            raise Bad("fails", "the kernel gave another address than the one that was requested")
        if virt == int(length) and rss != int(expected):
            raise Bad("wrong", f"{kind}: {rss} bytes resident, not {expected} ({process['residency']})")
        if virt > int(length):
            raise Bad("wrong", f"{kind}: {virt} bytes mapped, not {length}")
    if sum(r["virt"] for _, _, r in regions(process)) != process["totals"]["virt"]:
        raise Bad("wrong", "regions do not add up")


def known(s, name="known", file="known"):
    report = s.report(name)
    nothing_lost(report)
    no_drift(report["processes"][0])
    resident(report, s.text(file))


def counted(s):
    s.ran("count")
    s.ran("events")
    missing = 3000 - int(s.text("counted"))
    if missing:
        said = re.search(r"([0-9,]+) lost", s.text("count.txt"))
        enough = said and int(said.group(1).replace(",", "")) >= missing > 0
        raise Bad("lost" if enough else "wrong", f"{missing} of 3000 calls are missing, {said and said.group(0)}")


def ran(s, name):
    s.ran(name)


def check_backend(s):
    s.attempt(ran, "true")
    s.attempt(known)
    s.attempt(counted)


def check_doctor(s):
    s.attempt(ran, "doctor")


def check_load(s):
    for name in s.names(".rc"):
        s.attempt(ran, name)


def seed(s, name):
    report = s.report(name)
    nothing_lost(report)
    last = {process["pid"]: process for process in report["processes"]}
    files = [f for f in os.listdir(os.path.join(s.folder, name)) if f.startswith("maps.")]
    if not files:
        raise Bad("fails", "no maps files")
    for file in files:
        process = last.get(int(file.split(".")[1]))
        if process is None:
            raise Bad("wrong", f"{file} is of a process that is not in the report")
        no_drift(process)
        same_spans(process, s.text(os.path.join(name, file)))


def check_seeds(s):
    for name in s.names(".rc"):
        s.attempt(seed, name)


def snapshot(s):
    process = s.report("snapshot")["processes"][0]
    smaps = s.text("smaps")
    same_spans(process, smaps)
    rss = 1024 * sum(int(line.split()[1]) for line in smaps.splitlines() if line.startswith("Rss:"))
    if process["totals"]["rss"] != rss:
        raise Bad("wrong", f"{process['totals']['rss']} bytes resident, smaps has {rss}")


def attach(s, processes=1):
    report = s.report("attach")
    nothing_lost(report)
    if len(report["processes"]) != processes:
        raise Bad("wrong", f"{len(report['processes'])} processes, not {processes}")
    process = report["processes"][0]
    no_drift(process, ("ledger_drift",))
    same_spans(process, s.text("maps"))
    grown = 0
    for _, _, region in regions(process):
        origin = region["origin"] or {}
        if "grow_here" in names_of(report, origin.get("stack")):
            grown += region["virt"]
    if grown != 10 * (256 << 10):
        raise Bad("wrong", f"{grown} bytes are grow_here()'s, not 10 times 256 KiB")


def touch(s):
    report = s.report("touch")
    if report["touch"]["lost"]:
        raise Bad("lost", f"{report['touch']['lost']} page faults lost")
    pages = {}
    for row in report["processes"][0]["touch"]["rows"]:
        if "reserve" in names_of(report, row["reserved_by"]):
            for name in ("touch_first", "touch_second"):
                if name in names_of(report, row["touched_by"]):
                    pages[name] = pages.get(name, 0) + row["bytes_estimate"] // 4096
    if pages != {"touch_first": 300, "touch_second": 200}:
        raise Bad("wrong", f"pages by function: {pages}")


def heap(s, name, threads, rounds, keep):
    """blocks.c: what keeper() holds, and the sum of all calls; libc's own are a few per thread."""
    report = s.report(name)
    process = report["processes"][0]
    totals = process["totals"]
    nothing_lost(report)
    rows = [r for r in process["rows"] if "keeper" in names_of(report, r["stack"])]
    blocks, size = sum(r["blocks"] for r in rows), sum(r["bytes"] for r in rows)
    if (blocks, size) != (threads * keep, threads * keep * 1000):
        raise Bad("wrong", f"{blocks} blocks of {size} bytes are keeper()'s, not {threads * keep} of 1000 each")
    allocations, frees = threads * (rounds + keep), threads * rounds
    for what, expected in (("allocations", allocations), ("frees", frees)):
        if not expected <= totals[what] <= expected + 8 * threads:
            raise Bad("wrong", f"{totals[what]} {what}, not {expected} and a few of libc's")


def sample(s, threads, keep):
    """Estimates: within five standard errors."""
    report = s.report("sample")
    nothing_lost(report)
    process = report["processes"][0]
    rows = [r for r in process["rows"] if "keeper" in names_of(report, r["stack"])]
    size, error = sum(r["bytes"] for r in rows), sum(r["standard_error"] ** 2 for r in rows) ** 0.5
    if not rows or abs(size - threads * keep * 1000) > 5 * error:
        raise Bad("wrong", f"keeper() holds {size} ± {error:.0f} bytes, not {threads * keep * 1000}")


def probe(s, name, calls):
    report = s.report(name)
    if report["notes"] and report["calls"] != calls:
        raise Bad("lost", f"{report['calls']} of {calls} calls: {report['notes']}")
    if report["calls"] != calls:
        raise Bad("wrong", f"{report['calls']} of {calls} calls")


def recording(s):
    for name in s.names(".rc"):
        s.ran(name)
    run = s.text("run.txt")
    for name in ("report", "replay"):
        if s.text(name + ".out") != run:
            raise Bad("wrong", f"{name} prints something else than the run did")
    calls = [json.loads(line)["op"] for line in s.text("events.out").splitlines()]
    live = [json.loads(line)["op"] for line in s.text("live.json").splitlines()]
    if calls.count("mmap") < 6 or calls.count("mmap") != live.count("mmap"):
        raise Bad("wrong", f"{calls.count('mmap')} calls of mmap recorded, {live.count('mmap')} live")
    steps = json.loads(s.text("explain.out"))["entries"]
    if not any(step["change"] == "mapped" for entry in steps for step in entry["steps"]):
        raise Bad("wrong", "explain does not know who mapped the address")


def check_la57(s):
    for name in s.names(".rc"):
        s.attempt(known, name, name + ".known")


def cgroup(s):
    snapshot = s.report("snapshot")["processes"]
    if [p["comm"] for p in snapshot] != ["steps"]:
        raise Bad("wrong", f"in the cgroup: {[p['comm'] for p in snapshot]}")
    if "cgroup2" not in s.text("mounts"):
        raise Bad("fails", "no cgroup v2")
    attach(s)


def smaps_field(text, address, field):
    """The sum of a field over the VMAs from `address` on that are one mapping of the program."""
    inside, total = False, None
    for line in text.splitlines():
        if "-" in line.split()[0]:
            inside = int(line.split("-")[0], 16) == address
        elif inside and line.startswith(field + ":"):
            total = (total or 0) + 1024 * int(line.split()[1])
    if total is None:
        raise Bad("fails", f"smaps has no {field} at {address:#x}")
    return total


def paged(s, backend, fields):
    """Each region that paged.c names has the bytes that its smaps has."""
    report = s.report(backend)
    nothing_lost(report)
    process = report["processes"][0]
    no_drift(process)
    smaps = s.text(backend + ".smaps")
    said = [line.split() for line in s.text(backend + ".out").splitlines() if line.startswith("0x")]
    for address, kind in said:
        start = int(address, 16)
        region = next((r for a, _, r in regions(process) if a == start), None)
        if region is None:
            raise Bad("wrong", f"{kind}: no region begins at {address}")
        for key, names in fields.items():
            expected = sum(smaps_field(smaps, start, name) for name in names)
            if region[key] != expected:
                raise Bad("wrong", f"{kind}: {key} is {region[key]}, smaps has {expected} ({process['residency']})")
    if not said:
        raise Bad("fails", "the program said nothing")


def check_swap(s):
    if "zram" not in s.text("swaps"):
        s.words.append("fails")
        s.notes.append(("zram", "no swap"))
        return
    for backend in s.names(".rc"):
        s.attempt(paged, backend, {"rss": ["Rss"], "swap": ["Swap"]})


def check_huge(s):
    for backend in s.names(".rc"):
        s.attempt(paged, backend, {"rss": ["Rss"]})


def check_probe(s):
    for way in s.names(".rc"):
        s.attempt(probe, way, 4000)


def check_heap(s):
    s.attempt(heap, "heap", 8, 1500, 200)
    s.attempt(sample, 8, 200)


CHECKS = {
    "doctor": check_doctor,
    "load": check_load,
    "bpf": check_backend,
    "perf": check_backend,
    "notify": check_backend,
    "seeds": check_seeds,
    "snapshot": lambda s: s.attempt(snapshot),
    "attach": lambda s: s.attempt(attach),
    "touch": lambda s: s.attempt(touch),
    "heap": check_heap,
    "combined": lambda s: s.attempt(heap, "combined", 8, 1500, 200),
    "probe": check_probe,
    "recording": lambda s: s.attempt(recording),
    "la57": check_la57,
    "cgroup": lambda s: s.attempt(cgroup),
    "swap": check_swap,
    "huge": check_huge,
}


def word_of(s, check):
    """The word of a set for the table."""
    if os.path.exists(os.path.join(s.folder, "absent")):
        return "absent"
    if not os.path.isdir(s.folder):
        return "fails"
    check(s)
    if s.name == "doctor" and s.word() == "exact":
        return json.loads(s.text("doctor.out"))["auto"] or "none"
    if s.name == "seeds":
        # What a backend refuses is in its own column.
        tried = [word for word in s.words if word != "refused"]
        return f"{tried.count('exact')}/{len(tried)}" if set(tried) <= {"exact"} else f"not all ({s.word()})"
    return s.word()


def residency(folder):
    """How vmaudit found out what is resident, with each backend that ran."""
    found = set()
    for name in ("bpf", "perf", "notify"):
        try:
            with open(os.path.join(folder, name, "known.json"), encoding="utf-8") as file:
                found.add(json.load(file)["processes"][0]["residency"])
        except (OSError, ValueError, LookupError):
            continue
    return ", ".join(sorted(found)) or "–"


def main():
    folder, sets = sys.argv[1], sys.argv[2:]
    for name in sets:
        s = Set(folder, name)
        print(f"{name}\t{word_of(s, CHECKS[name])}")
        for why in dict.fromkeys(why for _, why in s.notes):
            which = ", ".join(dict.fromkeys(check for check, same in s.notes if same == why))
            print(f"!\t{name}\t{which}: {why}")
        log = os.path.join(s.folder, "kernel.log")
        for line in open(log, encoding="utf-8", errors="replace") if os.path.exists(log) else ():
            print(f"!\t{name}\tkernel: {line.strip()}")
    if {"bpf", "perf", "notify"} & set(sets):
        print(f"residency\t{residency(folder)}")


if __name__ == "__main__":
    main()
