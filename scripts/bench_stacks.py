"""How many call stacks of the perf and notify backends equal the BPF backend's.

Each program runs once by each backend, with ASLR off; stacks are compared frame by frame, by module and
offset. Equal: the same, and nothing is guessed. Marked: the same up to a frame that is marked as a guess, or
as far as the shorter one goes and it says that it is incomplete. Different: neither.
"""

import collections
import json
import os
import re

import compare_stacks

PYTHON = ("import json, re, decimal, threading\n"
          "re.findall('a(b|c)*', 'abcb' * 999); json.dumps([9] * 30000)\n"
          "t = [threading.Thread(target=lambda: bytearray(10 ** 6)) for _ in range(4)]\n"
          "[x.start() for x in t]; [x.join() for x in t]\n")
PERL = "my @a = map { [1..50] } 1..3000; print scalar @a;"


def commands(root, folder):
    """(name, command, port if it is a server)."""
    for name in ("demo", "redis"):
        try:
            command, port = compare_stacks.command_of(name, root, folder)
            yield {"demo": "the demonstration program", "redis": "redis-server"}[name], command, port
        except (OSError, RuntimeError, compare_stacks.subprocess.SubprocessError) as error:
            print(f"SKIP {name}: {error}")
    yield "python3", ["/usr/bin/python3", "-c", PYTHON], None
    yield "perl", ["/usr/bin/perl", "-e", PERL], None


def calls(path):
    """Each thread's calls in the order in which the threads appear: (call, frames, complete)."""
    threads, order = collections.defaultdict(list), {}
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            event = json.loads(line)
            stack = event["stack"]
            if not stack or not stack.get("frames"):
                continue
            frames = [(f["module"], f["offset"], bool(f.get("guess"))) for f in stack["frames"] if not f["inlined"]]
            call = re.sub(r"0x[0-9a-f]{7,}", "", event["call"])
            thread = order.setdefault(event["tid"], len(order))
            threads[thread].append((call, frames, not stack.get("unwind_incomplete")))
    return threads


def common(ours, theirs):
    n = 0
    for a, b in zip(ours, theirs):
        if a[:2] != b[:2]:
            break
        n += 1
    return n


def root(frames):
    return frames[-3][:2] if len(frames) > 2 else None


def compare(ours, theirs):
    shares = collections.Counter()
    everything = [entry for calls_ in theirs.values() for entry in calls_]
    roots = {root(frames) for _, frames, _ in everything}
    for thread, own in ours.items():
        for index, (call, frames, complete) in enumerate(own):
            if thread == 0:
                # One thread makes the same calls in the same order.
                same = theirs.get(0, [])
                at = [same[index]] if index < len(same) and same[index][0] == call else same
                candidates = [f for c, f, _ in at if c == call]
            else:
                # Which of several threads is first differs from run to run.
                candidates = [f for c, f, _ in everything
                              if c == call and (root(frames) not in roots or root(f) == root(frames))]
            if not candidates:
                shares["only there"] += 1
                continue
            best = max(candidates, key=lambda f: common(frames, f))
            n = common(frames, best)
            guessed = any(frame[2] for frame in frames)
            if n == len(frames) == len(best) and not guessed:
                shares["equal"] += 1
            elif n == len(frames) or frames[n][2]:
                shares["marked"] += 1
            else:
                shares["different"] += 1
    return shares


def rows(vmaudit, root_folder, folder):
    environment = {"PYTHONHASHSEED": "0", "PERL_HASH_SEED": "0"}
    os.environ.update(environment)
    for name, command, port in commands(root_folder, folder):
        seen = {}
        try:
            for backend in ("bpf", "perf", "notify"):
                path = os.path.join(folder, f"events.{backend}")
                events = [vmaudit, "events", "--as-root", "--backend", backend, "--aslr", "off", "-f", "json",
                          "--report", path, "--"]
                compare_stacks.run(events + command, port)
                seen[backend] = calls(path)
        except (RuntimeError, OSError, compare_stacks.subprocess.SubprocessError) as error:
            print(f"SKIP {name}: {error}")
            continue
        for backend in ("perf", "notify"):
            shares = compare(seen[backend], seen["bpf"])
            compared = sum(shares[key] for key in ("equal", "marked", "different")) or 1
            share = lambda key: f"{100 * shares[key] / compared:.1f} %"
            yield (f"{name}, {backend}", compared, share("equal"), share("marked"), share("different"),
                   shares["only there"])
