# SPDX-License-Identifier: MIT OR Apache-2.0
"""Allocates from Python functions of every kind, holds all of it, writes down what the interpreter and tracemalloc say
of each block and of each line, and ends as it is: python_heap.py FILE [wait] [alone]. Its blocks have 20,000 to 30,000
bytes, and tracemalloc's own never have; `alone` is without it."""

import _tracemalloc  # without what tracemalloc imports
import ctypes
import os
import signal
import sys
import threading

OUT = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
LOCK = threading.Lock()
COUNT = [0]
HELD = []
MANY = [None] * 400

if "wait" in sys.argv:
    print("READY", flush=True)
    sys.stdin.readline()
if "alone" not in sys.argv:
    _tracemalloc.start(200)


def say(**what):
    os.write(OUT, (str(what).replace("'", '"') + "\n").encode())


def traced(block):
    """File and line of each function when it was allocated, innermost first."""
    frames = _tracemalloc._get_object_traceback(block)
    if not frames:
        return []
    frames = frames[0] if isinstance(frames[0][0], tuple) else frames
    return [list(frame) for frame in frames]


def take(kind=""):
    with LOCK:
        COUNT[0] += 1
        size = 20_000 + 16 * COUNT[0]
    block = bytes(size)
    frame = sys._getframe()
    frames = [[frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lineno - 2]]
    while frame := frame.f_back:
        frames.append([frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lineno])
    HELD.append((kind, block, frames))


class Thing:
    take()
    all = [take() for _ in range(1)]

    def __init__(self):
        take()

    @property
    def property(self):
        return take()

    @classmethod
    def of_class(cls):
        (lambda: take())()

    def __lt__(self, other):
        take()
        return True

    def __del__(self):
        take()


def generator():
    take()
    yield 1
    yield from inner_generator()


def inner_generator():
    take()
    yield 2


async def coroutine():
    take()
    await inner_coroutine()


async def inner_coroutine():
    take()


def recursion(depth, kind):
    if depth:
        return recursion(depth - 1, kind)
    take(kind)


def through_c(depth):
    if depth:
        return list(map(through_c, [depth - 1]))
    take("through C")


class Context:
    def __enter__(self):
        take()

    def __exit__(self, *raised):
        take()


def over_lines():
    return (
        1,
        take(),
        3,
    )


def many():
    for i in range(0, 200):
        MANY[i] = bytes(26_000 + i)
    for i in range(200, 400):
        MANY[i] = "x" * (26_000 + i)
    for i in range(0, 400, 3):
        MANY[i] = None


def generated(number):
    source = f"def function_{number}():\n" + "\n" * (number % 50) + "  take('generated')\n"
    names = {"take": take}
    exec(compile(source + f"function_{number}()\n", f"/somewhere/generated_{number}.py", "exec"), names)


def main():
    Thing().property
    Thing.of_class()
    sorted([Thing(), Thing()])
    list(map(lambda a: take(), [1, 2, 3]))
    list(generator())
    sum(1 for _ in generator() if not take())
    try:
        coroutine().send(None)
    except StopIteration:
        pass
    recursion(60, "")
    recursion(150, "deep")
    through_c(20)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))

    def by_callback(a, b):
        take("through C")
        return a[0] - b[0]

    ctypes.CDLL(None).qsort((ctypes.c_int * 3)(3, 2, 1), 3, 4, compare(by_callback))
    signal.signal(signal.SIGUSR1, lambda number, frame: take())
    os.kill(os.getpid(), signal.SIGUSR1)
    # Each function is gone when the next one is made.
    for number in range(20):
        generated(number)
    for _ in range(4):
        threads = [threading.Thread(target=lambda: (take(), Thing().property)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with Context():
        take()
    over_lines()
    many()


main()
for kind, block, frames in HELD:
    say(kind=kind, bytes=sys.getsizeof(block), frames=frames, traced=traced(block))
LINES = {}
for text in filter(None, MANY if _tracemalloc.is_tracing() else ()):
    line = traced(text)[0][1]
    held, blocks = LINES.get(line, (0, 0))
    LINES[line] = held + sys.getsizeof(text), blocks + 1
for line, (held, blocks) in LINES.items():
    say(kind="line", line=line, bytes=held, blocks=blocks)
if "wait" in sys.argv:
    print("DONE", flush=True)
    sys.stdin.readline()
os._exit(0)
