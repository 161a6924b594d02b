#!/usr/bin/python3
"""Runs programs as they are and with the setting that a built-in rule (docs/rules.md) advises, and prints what the rule
recognised, what the report promised and what the setting saved (VIRT, over all processes), as a markdown table. Exit
status 1 if a rule did not recognise its program, or a promise did not hold."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from sentences import machine

# A promise holds where nine tenths of it were saved, as `vmaudit compare` has it.
HOLDS = 0.9
SHELL = ["sh", "-c"]

PYTHON = "import numpy, time; a = numpy.ones((600, 600)); b = a @ a; time.sleep(60)"
NGINX = """daemon off; pid %(folder)s/nginx.pid; error_log %(folder)s/nginx.log; events {}
http { access_log off; limit_req_zone $binary_remote_addr zone=limit:%(size)s rate=1r/s;
proxy_cache_path %(folder)s/cache keys_zone=keys:%(size)s; }
"""
LDAP = """include /etc/ldap/schema/core.schema
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
suffix "dc=a"
directory %(folder)s
maxsize %(size)s
"""
JAVA = """import java.nio.ByteBuffer; public class Direct { public static void main(String[] a) throws Exception {
ByteBuffer[] all = new ByteBuffer[9]; for (int i = 0; i < 9; i++) all[i] = ByteBuffer.allocateDirect(4 << 20);
Thread.sleep(60000); } }
"""
RUBY = "a = (1..100000).map { |i| \"text #{i}\" * 3 }; sleep 60"
# Debian's memcached has no symbols: MEMCACHED names one that has.
MEMCACHED = os.environ.get("MEMCACHED", "memcached")
# A Python that has PyPI's kuzu.
KUZU_PYTHON = os.environ.get("KUZU_PYTHON", "kuzu-python")
KUZU = """import kuzu, os, sys, time
size = os.environ.get("SIZE")
base = kuzu.Database(os.path.join(sys.argv[1], "kuzu-%d" % os.getpid()), **({"max_db_size": int(size)} if size else {}))
time.sleep(60)"""
# A Python that has PyPI's ray.
RAY_PYTHON = os.environ.get("RAY_PYTHON", "ray-python")
RAY = """import os, ray, time
size = os.environ.get("SIZE")
ray.init(num_cpus=1, include_dashboard=False, **({"object_store_memory": int(size)} if size else {}))
kept = ray.put(bytes(200000))
time.sleep(60)"""
# A Python that has PyPI's wasmtime.
WASMTIME_PYTHON = os.environ.get("WASMTIME_PYTHON", "wasmtime-python")
WASMTIME = """import os, time, wasmtime
config = wasmtime.Config()
size = os.environ.get("SIZE")
if size:
    config.memory_reservation = int(size)
store = wasmtime.Store(wasmtime.Engine(config))
module = wasmtime.Module(store.engine, "(module (memory 1 2))")
kept = wasmtime.Instance(store, module, [])
time.sleep(60)"""
TARANTOOL = """local function size(name) return tonumber(os.getenv(name)) end
box.cfg{work_dir = os.getenv("FOLDER"), wal_mode = "none", memtx_memory = size("MEMTX"), vinyl_memory = size("VINYL")}
require("fiber").sleep(60)
"""
# A Python that has PyPI's mini-racer.
RACER_PYTHON = os.environ.get("RACER_PYTHON", "racer-python")
RACER = "import time; from py_mini_racer import MiniRacer; one = MiniRacer(); print(one.eval('1 + 1')); time.sleep(60)"
LMDB = """import lmdb, os, sys, time
base = lmdb.open(os.path.join(sys.argv[1], "lmdb-%d" % os.getpid()), map_size=1 << 30)
time.sleep(60)"""
KNOT = """server:
    rundir: "%(folder)s"
    listen: 127.0.0.1@7723
database:
    storage: "%(folder)s"
    journal-db-max-size: %(size)s
zone:
  - domain: vmaudit.test
    file: "%(folder)s/zone"
    journal-content: all
"""
ZONE = """$TTL 60
@ SOA a b 1 1 1 1 1
@ NS a
a A 127.0.0.1
"""
PROLOG = "numlist(1, 300000, L), sleep(60), length(L, _)"
LUA = "local t = {} for i = 1, 1000000 do t[i] = {i} end local e = os.time() + 60 while os.time() < e do end print(#t)"
HUGE = {"vm.nr_hugepages": "32"}
HASKELL = "import Control.Concurrent\nmain = threadDelay 60000000\n"


class Case:
    """A program, the rule that is to recognise its memory, and the setting in two spellings: the rule's, and how it
    is given to this very command. None: nothing is promised."""

    def __init__(self, rule, knob, command, change=None, prepare=None, sysctl=None):
        self.rule, self.knob, self.command, self.change = rule, knob, command, change
        self.sysctl = sysctl or {}
        self.prepare = prepare or (lambda folder: None)


def mariadb(folder):
    data = os.path.join(folder, "mariadb")
    if not os.path.exists(data):
        os.mkdir(data)
        start = ["mariadbd", "--no-defaults", "--user=root", "--bootstrap", "--datadir=" + data]
        start += ["--skip-networking", "--skip-grant-tables"]
        subprocess.run(start, input=b"create database mysql;\n", check=True, capture_output=True)


def nginx(folder):
    for name, size in (("as-it-is", "32m"), ("small", "1m")):
        with open(os.path.join(folder, name), "w") as file:
            file.write(NGINX % {"folder": folder, "size": size})


def knot(folder):
    with open(os.path.join(folder, "zone"), "w") as file:
        file.write(ZONE)
    for name, size in (("knot-as-it-is", "20G"), ("knot-small", "64M")):
        with open(os.path.join(folder, name), "w") as file:
            file.write(KNOT % {"folder": folder, "size": size})


def haskell(folder):
    with open(os.path.join(folder, "wait.hs"), "w") as file:
        file.write(HASKELL)
    build = ["ghc", "-v0", "-rtsopts", "wait.hs", "-o", "wait"]
    subprocess.run(build, cwd=folder, check=True)


def lisp_threads(folder):
    with open(os.path.join(folder, "threads.lisp"), "w") as file:
        file.write("(dotimes (i 8) (sb-thread:make-thread (lambda () (sleep 60))))\n(sleep 60)\n")


def mono(folder):
    with open(os.path.join(folder, "Waits.cs"), "w") as file:
        file.write("class Waits { static void Main() { System.Threading.Thread.Sleep(60000); } }\n")
    subprocess.run(["mcs", "Waits.cs"], cwd=folder, check=True)


def gcc(folder):
    with open(os.path.join(folder, "all.cc"), "w") as file:
        file.write("#include <regex>\nstd::regex made(\"a+b\");\n")


def ldap(folder):
    for size in ("1073741824", "67108864"):
        with open(os.path.join(folder, "slapd-%s.conf" % size), "w") as file:
            file.write(LDAP % {"folder": folder, "size": size})


def varnish(folder):
    # its child is another user
    os.chmod(folder, 0o755)


def tarantool(folder):
    os.makedirs(os.path.join(folder, "tarantool"), exist_ok=True)
    with open(os.path.join(folder, "init.lua"), "w") as file:
        file.write(TARANTOOL)


def firefox(folder):
    os.makedirs(os.path.join(folder, "firefox"), exist_ok=True)


def java(folder):
    with open(os.path.join(folder, "Direct.java"), "w") as file:
        file.write(JAVA)
    subprocess.run(["javac", "Direct.java"], cwd=folder, check=True)


def cases(folder):
    server = ["mariadbd", "--no-defaults", "--user=root", "--datadir=" + os.path.join(folder, "mariadb")]
    server += ["--skip-networking", "--skip-grant-tables", "--socket=" + os.path.join(folder, "mariadb.sock")]
    machine = "exec qemu-system-x86_64 -accel tcg$TB -m ${M-512} -nographic -nodefaults -S -monitor none"
    drivers = "exec erl +A ${A-16} -noshell -eval 'timer:sleep(60000).'"
    bun = ["bun", "-e", "setInterval(() => {}, 60000)"]
    erlang = ["erl", "-noshell", "-eval", "timer:sleep(60000)."]
    php = "exec php -d opcache.enable_cli=1 -d opcache.memory_consumption=${SIZE-128} -r 'sleep(60);'"
    lisp = "exec sbcl --dynamic-space-size ${SIZE-1GB} --noinform --eval '(sleep 60)'"
    threads = "exec sbcl --control-stack-size ${STACK-2MB} --script %s/threads.lisp" % folder
    browser = "exec chromium --headless=new --no-sandbox --disable-gpu --user-data-dir=%s/chromium about:blank" % folder
    directory = "exec slapd -d 0 -h ldap://127.0.0.1:7856 -f %s/slapd-${SIZE-1073741824}.conf" % folder
    items = "exec %s -u nobody -p 7721 -L -m ${M-256}" % MEMCACHED
    cache = "exec varnishd -F -a 127.0.0.1:7722 -b 127.0.0.1:1 -n %s/varnish -s malloc,16m $V" % folder
    dotnet = "sleep 60 | exec azmcp server start"
    # hugetlbfs in a mount namespace of its own; it waits for commands on its standard input
    packets = "mount -t hugetlbfs none %s && sleep 60 | exec dpdk-testpmd --lcores=0@0,1@0 --file-prefix=vmaudit --no-pci -m 32 $O \\\n" % folder
    packets += "--huge-dir %s --no-telemetry --vdev=net_null0 -- -i --total-num-mbufs=2048 --no-mlockall" % folder
    testpmd = ["unshare", "--mount", "sh", "-c", packets]
    fox = "exec firefox --headless --profile %s/firefox about:blank" % folder
    names = "rm -rf %s/journal; exec knotd -c %s/knot-${CONF-as-it-is}" % (folder, folder)
    store = "rm -rf %s/etcd; exec etcd --data-dir %s/etcd $Q --listen-client-urls http://127.0.0.1:7724 " % (folder, folder)
    store += "--advertise-client-urls http://127.0.0.1:7724 --listen-peer-urls http://127.0.0.1:7725 "
    store += "--initial-advertise-peer-urls http://127.0.0.1:7725 --initial-cluster default=http://127.0.0.1:7725"
    prover = "sleep 60 | exec coqtop"
    tuples = "FOLDER=%s/tarantool exec tarantool %s/init.lua" % (folder, folder)
    zones = "exec nginx -c %s/${CONF-as-it-is}" % folder
    return [
        Case("php.opcache", "opcache.memory_consumption=32", SHELL + [php], ["--env", "SIZE=32"]),
        Case("openblas.buffers", "OPENBLAS_NUM_THREADS=1", ["/usr/bin/python3", "-c", PYTHON],
             ["--env", "OPENBLAS_NUM_THREADS=1"]),
        Case("mariadb.buffer-pool-max", "--innodb-buffer-pool-size-max=1G", server,
             ["--arg=--innodb-buffer-pool-size-max=1G"], mariadb),
        Case("mariadb.buffer-pool", None, server, None, mariadb),
        Case("mariadb.aria", "--aria-pagecache-buffer-size=8M", server, ["--arg=--aria-pagecache-buffer-size=8M"],
             mariadb),
        Case("mariadb.key-buffer", "--key-buffer-size=1M", server, ["--arg=--key-buffer-size=1M"], mariadb),
        Case("nginx.zones", "zones of 1m", SHELL + [zones], ["--env", "CONF=small"], nginx),
        Case("knot.journal", "journal-db-max-size: 64M", SHELL + [names], ["--env", "CONF=small"], knot),
        Case("kuzu.database", "max_db_size=1073741824", [KUZU_PYTHON, "-c", KUZU, folder],
             ["--env", "SIZE=1073741824"]),
        Case("kuzu.pages", None, [KUZU_PYTHON, "-c", KUZU, folder]),
        Case("erlang.literals", "ERL_FLAGS='+MIscs 64'", erlang, ["--env", "ERL_FLAGS=+MIscs 64"]),
        Case("erlang.carriers", None, erlang),
        Case("erlang.jit", None, erlang),
        Case("erlang.schedulers", "+sss 20", erlang, ["--env", "ERL_FLAGS=+sss 20 +sssdcpu 20 +sssdio 20"]),
        Case("erlang.async", "+A 1", SHELL + [drivers], ["--env", "A=1"]),
        Case("sbcl.dynamic-space", "--dynamic-space-size 256MB", SHELL + [lisp], ["--env", "SIZE=256MB"]),
        Case("sbcl.core", None, SHELL + [lisp]),
        Case("sbcl.immobile-space", None, SHELL + [lisp]),
        Case("sbcl.thread", "--control-stack-size 1MB", SHELL + [threads], ["--env", "STACK=1MB"], lisp_threads),
        Case("ghc.address-space", None, [os.path.join(folder, "wait")], None, haskell),
        Case("ghc.heap", None, [os.path.join(folder, "wait")], None, haskell),
        Case("qemu.translated-code", "tb-size=64", SHELL + [machine], ["--env", "TB=,tb-size=64"]),
        Case("qemu.guest-memory", "-m 128", SHELL + [machine], ["--env", "M=128"]),
        Case("php.chunks", None, ["php", "-r", "$a = str_repeat('x', 9000000); sleep(60);"]),
        Case("javascriptcore.structures", "structureHeapSizeInKB=262144", bun,
             ["--env", "BUN_JSC_structureHeapSizeInKB=262144"]),
        Case("javascriptcore.code", "jitMemoryReservationSize=67108864", bun,
             ["--env", "BUN_JSC_jitMemoryReservationSize=67108864"]),
        Case("jvm.direct", None, ["java", "-cp", folder, "Direct"], None, java),
        Case("chromium.partition-alloc", None, SHELL + [browser]),
        Case("chromium.partition-alloc-elsewhere", None, [RACER_PYTHON, "-c", RACER]),
        Case("boehm.heap", None, ["guile", "--no-auto-compile", "-c", "(define v (make-vector 1000000 1)) (sleep 60)"]),
        Case("slapd.database", "maxsize 67108864", SHELL + [directory], ["--env", "SIZE=67108864"], ldap),
        Case("gforth.dictionary", "gforth --dictionary-size=1M", SHELL + ["exec gforth $M -e '60000 ms'"],
             ["--env", "M=--dictionary-size=1M"]),
        Case("luajit.heap", None, ["luajit", "-e", LUA]),
        Case("swipl.stacks", None, ["swipl", "-g", PROLOG, "-t", "halt"]),
        Case("lmdb.map", None, ["/usr/bin/python3", "-c", LMDB, folder]),
        Case("mono.heap", None, ["mono", os.path.join(folder, "Waits.exe")], None, mono),
        Case("chez.segments", None, ["racket", "-e", "(define v (make-vector 2000000 1)) (sleep 60)"]),
        Case("memcached.slabs", "memcached -m 64", SHELL + [items], ["--env", "M=64"]),
        Case("varnish.workers", "thread_pool_min=10", SHELL + [cache], ["--env", "V=-p thread_pool_min=10"], varnish),
        Case("varnish.log", "varnishd -l 16M", SHELL + [cache], ["--env", "V=-l 16M"], varnish),
        Case("dpdk.addresses", "--legacy-mem", testpmd, ["--env", "O=--legacy-mem"], None, HUGE),
        Case("dpdk.hugepages", None, testpmd, None, None, HUGE),
        Case("dotnet.gc-range", "DOTNET_GCRegionRange=0x200000000", SHELL + [dotnet],
             ["--env", "DOTNET_GCRegionRange=0x200000000"]),
        Case("dotnet.double-mapped", None, SHELL + [dotnet]),
        Case("firefox.code", None, SHELL + [fox], None, firefox),
        Case("firefox.sandboxed", None, SHELL + [fox], None, firefox),
        Case("etcd.database", "--quota-backend-bytes=67108864", SHELL + [store],
             ["--env", "Q=--quota-backend-bytes=67108864"]),
        Case("bbolt.map", None, SHELL + [store.replace("$Q", "--quota-backend-bytes=67108864")]),
        Case("ocaml.young-objects", None, SHELL + ["sleep 60 | exec ocaml"]),
        Case("gcc.heap", None, ["g++", "-O2", "-c", "-o", "/dev/null", os.path.join(folder, "all.cc")], None, gcc),
        Case("coq.young-objects", "OCAMLRUNPARAM=s=32k", SHELL + [prover], ["--env", "OCAMLRUNPARAM=s=32k"]),
        Case("ocaml.tables", None, SHELL + [prover]),
        Case("ocaml.heap", None, SHELL + [prover]),
        Case("ray.objects", "object_store_memory=268435456", [RAY_PYTHON, "-c", RAY], ["--env", "SIZE=268435456"]),
        Case("wasmtime.memory", "memory_reservation", [WASMTIME_PYTHON, "-c", WASMTIME], ["--env", "SIZE=67108864"]),
        Case("tarantool.memtx", "memtx_memory", SHELL + [tuples], ["--env", "MEMTX=67108864"], tarantool),
        Case("tarantool.vinyl", "vinyl_memory", SHELL + [tuples], ["--env", "VINYL=33554432"], tarantool),
        Case("mit-scheme.heap", "MITSCHEME_HEAP_SIZE=8192", SHELL + ["sleep 60 | exec mit-scheme --quiet"],
             ["--env", "MITSCHEME_HEAP_SIZE=8192"]),
        Case("gprolog.stacks", "GLOBALSZ=8192", SHELL + ["sleep 60 | exec gprolog"], ["--env", "GLOBALSZ=8192"]),
        Case("gcl.heap", "GCL_MEM_MULTIPLE=0.1", SHELL + ["sleep 60 | gcl"], ["--env", "GCL_MEM_MULTIPLE=0.1"]),
        Case("ruby.transient-heap", None, ["ruby", "-e", "sleep 60"]),
        Case("ruby.heap-pages", None, ["ruby", "-e", RUBY]),
    ]


# What has to be there for the rules of a group, and the package that brings it.
NEEDS = {
    "php": ("php", "php-cli"),
    "openblas": ("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0", "libopenblas0-pthread python3-numpy"),
    "mariadb": ("mariadbd", "mariadb-server-core"),
    "nginx": ("nginx", "nginx-light"),
    "knot": ("knotd", "knot"),
    "kuzu": (KUZU_PYTHON, "a Python with kuzu of PyPI: KUZU_PYTHON=…"),
    "erlang": ("erl", "erlang-base"),
    "sbcl": ("sbcl", "sbcl"),
    "ghc": ("ghc", "ghc"),
    "javascriptcore": ("bun", "bun (of npm)"),
    "jvm": ("javac", "default-jdk-headless"),
    "chromium": ("chromium", "chromium"),
    "chromium.partition-alloc-elsewhere": (RACER_PYTHON, "a Python with mini-racer of PyPI: RACER_PYTHON=…"),
    "boehm": ("guile", "guile-3.0"),
    "slapd": ("slapd", "slapd"),
    "lmdb": ("/usr/lib/python3/dist-packages/lmdb/__init__.py", "python3-lmdb"),
    "gforth": ("gforth", "gforth"),
    "luajit": ("luajit", "luajit"),
    "swipl": ("swipl", "swi-prolog-nox"),
    "mono": ("mcs", "mono-runtime mono-mcs"),
    "chez": ("racket", "racket"),
    "memcached": (MEMCACHED, "memcached, built with symbols"),
    "varnish": ("varnishd", "varnish"),
    "dpdk": ("dpdk-testpmd", "dpdk-dev"),
    "dotnet": ("azmcp", "the folder dist of npm's @azure/mcp-linux-x64, in PATH"),
    "firefox": ("firefox", "firefox-esr"),
    "etcd": ("etcd", "etcd-server"),
    "bbolt": ("etcd", "etcd-server"),
    "gcc": ("g++", "g++"),
    "coq": ("coqtop", "coq"),
    "ocaml": ("coqtop", "coq"),
    "ray": (RAY_PYTHON, "a Python with ray of PyPI: RAY_PYTHON=…"),
    "wasmtime": (WASMTIME_PYTHON, "a Python with wasmtime of PyPI: WASMTIME_PYTHON=…"),
    "tarantool": ("tarantool", "tarantool"),
    "mit-scheme": ("mit-scheme", "mit-scheme"),
    "gprolog": ("gprolog", "gprolog"),
    "gcl": ("gcl", "gcl"),
    "ruby": ("ruby", "ruby"),
    "qemu": ("qemu-system-x86_64", "qemu-system-x86"),
}


def promised(report, case):
    """Of VIRT, over all processes; None where the rule did not recognise anything or promises nothing."""
    findings = [f for p in report["processes"] for f in p["findings"] if f.get("rule") == case.rule]
    fixes = [fix for finding in findings for fix in finding["fix"] if case.knob in fix["knob"]]
    return sum(fix["saves_virt"] for fix in fixes) if fixes else None


def mib(size):
    return f"{size / (1 << 20):,.1f} MiB"


def run(vmaudit, arguments):
    # With one arena: how many there are depends on how threads are scheduled, and they are 64 MiB each.
    environment = dict(os.environ, MALLOC_ARENA_MAX="1")
    done = subprocess.run([vmaudit] + arguments, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=environment)
    return done.stdout, done.stderr.strip().splitlines()


def recognised(options, folder, case):
    """The report of the program as it is, and how much the rule says to be its."""
    report = os.path.join(folder, "report.json")
    # Ended by timeout(1): what `vmaudit run --duration` leaves running is somebody else's to end.
    command = ["timeout", "-k", "1", str(options.seconds + 3)] + case.command
    run(options.vmaudit, ["run", "--duration", str(options.seconds), "-f", "json", "--report", report, "--"] + command)
    out, _ = run(options.vmaudit, ["rules", "-f", "json", "--test", report])
    rules = [rule for process in json.loads(out)["processes"] for rule in process["rules"]]
    with open(report) as file:
        report = json.load(file)
    claimed = sum(rule["virt"] for rule in rules if rule["id"] == case.rule)
    # Of a stack without names the report alone says whose it is.
    findings = [f for p in report["processes"] for f in p["findings"] if f.get("rule") == case.rule]
    return report, claimed or sum(finding["virt"] for finding in findings)


def saved(options, case):
    """Of VIRT, as compare has measured it; else why not."""
    arguments = ["compare", "-f", "json", "-n", str(options.runs), "--duration", str(options.seconds)]
    out, said = run(options.vmaudit, arguments + case.change + ["--"] + case.command)
    try:
        sides = json.loads(out)["sides"]
        outcomes = {run["outcome"] for side in sides for run in side["runs"]}
        before, after = (side["figures"]["virt"]["median"] for side in sides)
    except (ValueError, KeyError):
        return None, "failed: " + " ".join(said[-1:])
    # A program that refuses the setting saves a lot.
    return (before - after, None) if outcomes == {"running"} else (None, "void: it " + ", ".join(outcomes))


def prove(options, folder, case):
    case.prepare(folder)
    report, claimed = recognised(options, folder, case)
    if not claimed:
        return "", "", "", "not recognised"
    if case.knob is None:
        return mib(claimed), "", "", "recognised"
    promise = promised(report, case)
    if promise is None:
        return mib(claimed), "", "", "nothing was promised"
    measured, why = saved(options, case)
    if measured is None:
        return mib(claimed), mib(promise), "", why
    verdict = "holds" if measured >= promise * HOLDS else "less than promised"
    return mib(claimed), mib(promise), mib(measured), verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vmaudit", required=True)
    parser.add_argument("--runs", type=int, default=1, help="runs of each side (compare -n)")
    parser.add_argument("--seconds", type=float, default=4, help="how long each run lasts")
    parser.add_argument("rules", nargs="*", help="ids or groups; all without")
    options = parser.parse_args()
    wrong = 0
    print("| rule | recognised | setting | promised | saved | |\n|---|---:|---|---:|---:|---|")
    with tempfile.TemporaryDirectory(prefix="vmaudit-prove-") as folder:
        for case in cases(folder):
            group = case.rule.split(".")[0]
            if options.rules and not {case.rule, group} & set(options.rules):
                continue
            what, package = NEEDS.get(case.rule) or NEEDS[group]
            if not (shutil.which(what) or os.path.exists(what)):
                print(f"SKIP {case.rule}: {what} is not here (apt-get install {package})", flush=True)
                continue
            with machine(case.sysctl):
                claimed, promise, measured, verdict = prove(options, folder, case)
            wrong += verdict not in ("holds", "recognised")
            knob = f"`{case.knob}`" if case.knob else ""
            print(f"| `{case.rule}` | {claimed} | {knob} | {promise} | {measured} | {verdict} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
