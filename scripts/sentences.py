#!/usr/bin/python3
"""Tries every setting that the rules written as code advise or advise against, on a real program that has such memory
(sentence_programs.py), and prints what was promised and what it changed (VIRT and RSS of the memory's category, over all
processes). Which program proves which sentence is in src/attribution/rules/sentences.toml; --write puts what was measured
there, from where docs/evidence.md has it. Exit status 1 if a sentence is false."""

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

import sentence_programs

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILE = os.path.join(ROOT, "src/attribution/rules/sentences.toml")
# As `vmaudit compare` has it.
HOLDS, SMALL = 0.9, 0.05


@contextlib.contextmanager
def machine(settings):
    """The machine set so, and as it was before afterwards."""
    before = {}
    try:
        for name, value in settings.items():
            file = "/proc/sys/" + name.replace(".", "/")
            with open(file) as one:
                before[file] = one.read()
            with open(file, "w") as one:
                one.write(value)
        yield
    finally:
        for file, value in before.items():
            with open(file, "w") as one:
                one.write(value)


def snapshot(options, program, change, report):
    """The report of a process that was started without vmaudit."""
    environment, limit = dict(os.environ, MALLOC_ARENA_MAX="1"), None
    for option, value in zip(change[::2], change[1::2]):
        if option == "--env":
            name, _, value = value.partition("=")
            environment[name] = value
        elif option == "--stack-limit":
            limit = int(value)
    size = limit and (lambda: resource.setrlimit(resource.RLIMIT_STACK, (limit, limit)))
    started = subprocess.Popen(program.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env=environment, preexec_fn=size or None)
    time.sleep(program.seconds * options.slow)
    subprocess.run([options.vmaudit, "snapshot", "-f", "json", "--report", report, "-p", str(started.pid)],
                   capture_output=True)
    started.send_signal(signal.SIGKILL)
    started.wait()


def trace(options, program, change, report):
    end = ["--load", program.load] if program.load else ["--duration", str(program.seconds * options.slow)]
    # Ended by timeout(1): what `vmaudit run` leaves running is somebody else's to end.
    line = ["timeout", "-k", "1", str((program.seconds or 20) * options.slow + 3)] + program.command
    # How many arenas there are depends on how threads are scheduled: one, unless they are what is looked at.
    arenas = [] if program.arenas else ["--env", "MALLOC_ARENA_MAX=1"]
    arguments = ["run", "-f", "json", "--report", report] + end + arenas + change + ["--"] + line
    subprocess.run([options.vmaudit] + arguments, capture_output=True, stdin=subprocess.DEVNULL)
    if program.load:
        subprocess.run(["redis-cli", "-p", "7719", "shutdown", "nosave"], capture_output=True)


def audit(options, folder, program, change, sysctl=None):
    """The report of the program with this change; None where it did not run."""
    report = os.path.join(folder, "report.json")
    if os.path.exists(report):
        os.remove(report)
    with machine({**program.sysctl, **(sysctl or {})}):
        (snapshot if program.snapshot else trace)(options, program, change, report)
    try:
        with open(report) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def of(report, category):
    """VIRT and RSS."""
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
    parts = [part for part in re.split(r"\{[^}]*\}", says) if part]
    return all(part in shown for part in parts)


def is_seen(finding, says):
    """As its reason, or as the reason why a setting does not help."""
    reasons = [finding["why"]] + [no["why"] for no in finding.get("no_help") or []]
    return any(similar(why, says) for why in reasons)


def counted_again(report, category):
    """True where the largest mapping of the category is in several processes, so that their sum has it several times."""
    def ranges(process):
        return [(r["virt"], r["start"]) for r in process.get("regions", []) if r["category"] == category]
    found = [ranges(process) for process in report["processes"]]
    largest = max(max(own, default=(0, "")) for own in found)
    return sum(largest in own for own in found) > 1


def count(report):
    """The mappings of all processes."""
    checks = [check for process in report["processes"] for check in process["verdict"]["checks"]]
    return sum(check["used"] for check in checks if check["id"] == "mappings")


def prove(options, folder, sentence, base, program):
    """(promised, saved of VIRT, saved of RSS, verdict)"""
    own = findings(base, sentence["category"])
    key = {"fix": "fix", "not": "no_help"}.get(sentence["kind"])
    if key is None:
        return None, None, None, "seen" if any(is_seen(f, sentence["says"]) for f in own) else "not shown"
    shown = [entry for f in own for entry in f.get(key) or [] if similar(entry["knob"], sentence["says"])]
    if not shown:
        return None, None, None, "not shown"
    if sentence.get("added_up"):
        return None, None, None, "holds" if counted_again(base, sentence["category"]) else "FALSE"
    change = [word.replace("{folder}", folder) for word in sentence["change"]]
    sysctl = {}
    while "--sysctl" in change:
        at = change.index("--sysctl")
        name, _, value = change[at + 1].partition("=")
        sysctl[name], change = value, change[:at] + change[at + 2:]
    changed = audit(options, folder, program, change, sysctl)
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
        return promised, saved, rss - resident, "holds" if saved >= promised * HOLDS else "less than promised"
    helps = saved >= virt * 0.01 or rss - resident >= rss * 0.01
    if sentence.get("mappings"):
        # That they are fewer, or that there may be more.
        helps = count(changed) < count(base) * HOLDS or (sysctl and count(changed) * HOLDS > count(base))
    return promised, saved, rss - resident, "helps" if helps else "no effect here"


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
    parser.add_argument("--slow", type=float, default=1, help="each run lasts so many times as long: on a busy machine")
    parser.add_argument("--write", action="store_true", help="put what was measured into sentences.toml")
    parser.add_argument("programs", nargs="*", help="rules, parts of programs' names or of what is said; all without")
    options = parser.parse_args()
    with open(FILE) as file:
        text = file.read()
    header, sentences = text.split("\n[[sentence]]", 1)[0].rstrip() + "\n", tomllib.loads(text)["sentence"]
    wrong = 0
    print("| rule | category | | says | program | promised | VIRT saved | RSS saved | |\n|---|---|---|---|---|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory(prefix="vmaudit-prove-") as folder:
        sentence_programs.sources(folder)
        sentence_programs.postgres(folder)
        known = sentence_programs.programs(folder, options.vmaudit)
        bases = {}
        for sentence in sentences:
            name = sentence.get("program")
            chosen = not options.programs or any(
                p in (name or "") or p == sentence["rule"] or p in sentence["says"] for p in options.programs)
            if name is None or not chosen:
                continue
            program = known[name]
            if not program.is_here():
                print(f"SKIP {name}: {program.needs} is not here", flush=True)
                continue
            if name not in bases:
                bases[name] = audit(options, folder, program, [])
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
