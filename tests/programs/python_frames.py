# SPDX-License-Identifier: MIT OR Apache-2.0
"""Maps memory from Python functions of every kind, each mapping of another size, and writes down what the
interpreter itself says of the stack at each: python_frames.py FILE."""

import asyncio
import contextlib
import ctypes
import functools
import json
import mmap
import os
import signal
import sys
import threading

OUT = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
COUNT = [0]
LOCK = threading.Lock()


def take(kind=""):
    with LOCK:
        COUNT[0] += 1
        size = (1 << 22) + (COUNT[0] << 12)
    mapping = mmap.mmap(-1, size); frame = sys._getframe(); line = frame.f_lineno
    frames = [[frame.f_code.co_filename, frame.f_code.co_qualname, line]]
    while frame := frame.f_back:
        frames.append([frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lineno])
    mapping.close()
    os.write(OUT, (json.dumps({"pid": os.getpid(), "size": size, "kind": kind, "frames": frames}) + "\n").encode())


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
    await asyncio.sleep(0)
    take()


def recursion(depth, kind):
    if depth:
        return recursion(depth - 1, kind)
    take(kind)


def through_c(depth):
    if depth:
        return list(map(through_c, [depth - 1]))
    take("through C")


@contextlib.contextmanager
def context():
    take()
    yield
    take()


def tried():
    try:
        raise ValueError
    except ValueError:
        take()
    finally:
        take()


def over_lines():
    return (
        1,
        take(),
        3,
    )


def main():
    Thing().property
    Thing.of_class()
    sorted([Thing(), Thing()])
    functools.reduce(lambda a, b: take(), [1, 2, 3])
    list(generator())
    sum(1 for _ in generator() if not take())
    asyncio.run(coroutine())
    recursion(60, "")
    recursion(300, "deep")
    through_c(20)
    exec("def of_exec():\n  take()\nof_exec()\n", globals())
    source = "def größe_関数():\n\n  take()\ngröße_関数()\n"
    exec(compile(source, "/somewhere/dätei_😀.py", "exec"), globals())
    name = "f" * 3000
    exec(f"def {name}():\n take('long')\n{name}()\n", globals())
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))

    def by_callback(a, b):
        take("through C")
        return a[0] - b[0]

    ctypes.CDLL(None).qsort((ctypes.c_int * 3)(3, 2, 1), 3, 4, compare(by_callback))
    signal.signal(signal.SIGUSR1, lambda number, frame: take())
    os.kill(os.getpid(), signal.SIGUSR1)
    threads = [threading.Thread(target=lambda: (take(), Thing().property)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with context():
        take()
    tried()
    over_lines()
    child = os.fork()
    if child == 0:
        take("child")
        os._exit(0)
    os.waitpid(child, 0)


main()
