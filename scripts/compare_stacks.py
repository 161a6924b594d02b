#!/usr/bin/python3
"""Compares the call stacks of `vmaudit run --dump-events` with those of `strace -f -k`.

Both name a frame by module and file offset, so frames compare as they are. Two runs of a program
with threads do not make their calls in the same order; therefore calls are matched by what they
request (call, lengths, protections, flags, refused or not), and within such a group equal stacks
are paired first. What is left over in a group on both sides is a difference; what only one run
has (a thread that raced another way) is counted apart.
"""

import argparse
import collections
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

# Arguments that do not depend on where things happen to lie.
STABLE_ARGS = {
    "mmap": (1, 2, 3),
    "munmap": (1,),
    "mremap": (1, 2, 3),
    "mprotect": (1, 2),
    "pkey_mprotect": (1, 2),
    "madvise": (1, 2),
    "brk": (),
    "shmat": (2,),
    "shmdt": (),
    "remap_file_pages": (1,),
    "io_setup": (0,),
}
MASK = (1 << 64) - 1
CALL = re.compile(r"^(\d+) +(\w+)\((.*?)\) += (\S+)")
UNFINISHED = re.compile(r"^(\d+) +(\w+)\((.*?),? *<unfinished \.\.\.>")
RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*?)\) += (\S+)")
FRAME = re.compile(r"^ > (.*?)(?:\((.*)\))? \[0x([0-9a-f]+)\]$")


class Call:
    def __init__(self, op, args, failed):
        self.key = (op, failed) + tuple(args[i] & MASK for i in STABLE_ARGS[op] if i < len(args))
        self.frames = []
        self.complete = True


def module(path):
    name = path.rsplit("/", 1)[-1]
    return name.removesuffix(" (deleted)")


def read_vmaudit(path):
    calls = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            event = json.loads(line)
            if event["op"] not in STABLE_ARGS:
                continue
            args = [int(a, 0) if isinstance(a, str) else int(a) for a in event["args"]]
            ret = event["ret"]
            ret = int(ret, 0) if isinstance(ret, str) else ret
            call = Call(event["op"], args, -4095 <= ret < 0 or ret > MASK - 4095)
            call.complete = event["complete"]
            for frame in event["frames"]:
                name, _, offset = frame.rpartition("+")
                call.frames.append((module(name), int(offset, 16)))
            calls.append(call)
    return calls


def numbers(text):
    return [int(a, 0) for a in text.split(", ") if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", a)]


def read_strace(path):
    calls, open_calls, current = [], {}, None
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            line = line.rstrip("\n")
            if line.startswith(" > "):
                if current is None:
                    continue
                frame = FRAME.match(line)
                if frame is None or "unexpected_backtracing_error" in line:
                    current.complete = False
                else:
                    current.frames.append((module(frame[1]), int(frame[3], 16)))
                continue
            current = None
            found = UNFINISHED.match(line)
            if found:
                open_calls[found[1]] = found[3]
                continue
            found = RESUMED.match(line)
            if found:
                pid, op, rest, ret = found.groups()
                before = open_calls.pop(pid, "")
                text = ", ".join(part for part in (before, rest.strip(" ,")) if part)
            else:
                found = CALL.match(line)
                if not found:
                    continue
                _, op, text, ret = found.groups()
            if op in STABLE_ARGS and ret != "?":
                current = Call(op, numbers(text), ret.startswith("-"))
                calls.append(current)
    return calls


def compare(ours, theirs):
    result = collections.Counter()
    examples = []
    groups = collections.defaultdict(lambda: ([], []))
    for side, calls in enumerate((ours, theirs)):
        for call in calls:
            groups[call.key][side].append(call)
    for key, (a, b) in groups.items():
        pool = collections.defaultdict(list)
        for call in b:
            pool[tuple(call.frames)].append(call)
        left = []
        for call in a:
            same = pool[tuple(call.frames)]
            if same:
                same.pop()
                result["equal"] += 1
            else:
                left.append(call)
        rest = [call for calls in pool.values() for call in calls]
        # Strace's stack broke off, or ours did: the shorter has to be the other's beginning.
        for call in list(left):
            for other in rest:
                n = min(len(call.frames), len(other.frames))
                if n and call.frames[:n] == other.frames[:n]:
                    ours_longer = len(call.frames) > n
                    result["prefix: strace ends early" if ours_longer else "prefix: vmaudit ends early"] += 1
                    left.remove(call)
                    rest.remove(other)
                    break
        pairs = min(len(left), len(rest))
        result["different"] += pairs
        for call, other in list(zip(left, rest))[:1]:
            examples.append((key, call.frames, other.frames))
        result["only under vmaudit"] += len(left) - pairs
        result["only under strace"] += len(rest) - pairs
    return result, examples


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def redis_session(command, port):
    """Runs the traced server in a process group of its own, gives it work, and stops it."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                client = socket.create_connection(("127.0.0.1", port), timeout=60)
                break
            except OSError:
                if time.monotonic() > deadline or server.poll() is not None:
                    raise RuntimeError("redis-server did not start: " + server.stderr.read().decode()) from None
                time.sleep(0.05)
        with client:
            value = "x" * 1000
            for i in range(3000):
                client.sendall(f"SET key:{i} {value}\r\n".encode())
            client.sendall(b"FLUSHALL\r\nSHUTDOWN NOSAVE\r\n")
            while client.recv(65536):
                pass
        server.wait(timeout=120)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def run(command, port):
    if port:
        redis_session(command, port)
        return
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} … ended with {done.returncode}: {done.stderr.decode()[-500:]}")


def build(root, name, folder):
    source = os.path.join(root, "tests/programs", name)
    binary = os.path.join(folder, name.split(".")[0])
    compiler = "g++" if name.endswith(".cpp") else "gcc"
    subprocess.run([compiler, "-O2", "-g", "-fomit-frame-pointer", "-pthread", "-o", binary, source], check=True)
    return binary


def command_of(name, root, folder):
    """The command line of a workload, and the port if it is a server."""
    if name == "churn":
        return [build(root, "churn.c", folder), "1", "3", "80", os.path.join(folder, "maps")], None
    if name == "cxx":
        return [build(root, "cxx.cpp", folder), "3"], None
    if name == "demo":
        binary = os.path.join(folder, "two_allocators")
        subprocess.run([os.path.join(root, "scripts/demo/build.sh"), binary], check=True)
        return [binary], None
    if name == "python":
        script = "import threading, json, re, decimal, sqlite3\n" \
                 "t = [threading.Thread(target=lambda: [bytes(300000) for _ in range(20)]) for _ in range(3)]\n" \
                 "[x.start() for x in t]; [x.join() for x in t]\n"
        return ["/usr/bin/python3", "-c", script], None
    if name == "redis":
        port = free_port()
        return ["/usr/bin/redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                "--appendonly", "no", "--daemonize", "no", "--dir", folder], port
    raise SystemExit(f"unknown workload {name}: churn, cxx, demo, python, redis")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vmaudit", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--examples", type=int, default=2, help="differing stacks to print")
    parser.add_argument("workloads", nargs="*", default=[])
    options = parser.parse_args()
    bad = False
    print("| program | calls | equal | strace ends early | vmaudit ends early | different | only in one run | complete (vmaudit) | complete (strace) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in options.workloads or ["churn", "cxx", "demo", "python", "redis"]:
        with tempfile.TemporaryDirectory(prefix="vmaudit-compare.") as folder:
            try:
                command, port = command_of(name, options.root, folder)
                dump, log = os.path.join(folder, "events"), os.path.join(folder, "strace")
                run([options.vmaudit, "run", "--as-root", "--aslr", "off", "-f", "json", "--report", "/dev/null",
                     "--dump-events", dump, "--"] + command, port)
                traced = ",".join(STABLE_ARGS)
                run(["setarch", "-R", "strace", "-f", "-k", "-o", log, "-e", f"trace={traced}", "-e", "raw=all", "--"]
                    + command, port)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                print(f"SKIP {name}: {error}")
                bad = True
                continue
            ours, theirs = read_vmaudit(dump), read_strace(log)
        result, examples = compare(ours, theirs)
        matched = sum(v for k, v in result.items() if not k.startswith("only")) or 1
        share = lambda n, of: f"{100 * n / of:.2f} %" if of else "–"
        print(f"| {name} | {len(ours)} | {share(result['equal'], matched)} "
              f"| {share(result['prefix: strace ends early'], matched)} "
              f"| {share(result['prefix: vmaudit ends early'], matched)} "
              f"| {share(result['different'], matched)} "
              f"| {result['only under vmaudit']} + {result['only under strace']} "
              f"| {share(sum(c.complete for c in ours), len(ours))} "
              f"| {share(sum(c.complete for c in theirs), len(theirs))} |", flush=True)
        bad |= result["different"] * 100 > matched or not ours
        for key, a, b in examples[:options.examples]:
            print(f"  {key}", file=sys.stderr)
            for label, frames in (("vmaudit", a), ("strace", b)):
                print(f"    {label}: " + " < ".join(f"{m}+{o:#x}" for m, o in frames), file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
