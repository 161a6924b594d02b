//! The programs of tests/programs, each built once.

use super::managed::installed;
use super::manifest_dir;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

fn build_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs")
}

fn source(file: &str) -> PathBuf {
    manifest_dir().join("tests/programs").join(file)
}

/// True when `output` exists and none of `sources` is newer.
fn is_fresh(output: &Path, sources: &[&Path]) -> bool {
    let modified = |p: &Path| fs::metadata(p).and_then(|m| m.modified());
    let Ok(built) = modified(output) else { return false };
    sources.iter().all(|source| modified(source).is_ok_and(|time| time <= built))
}

/// The file `name`, built by `command`, which gets the path to write to, unless it is newer than its sources.
///
/// Tests run in parallel, in processes of their own, and may all need the same program at once: one builds
/// it, the others wait. It is never replaced while it runs: probes are placed on the file, and the one that
/// takes its name is another.
///
/// # Errors
/// What the compiler said first, or why there is none.
fn built(name: &str, sources: &[&Path], command: impl FnOnce(&Path) -> Command) -> Result<PathBuf, String> {
    let folder = build_dir();
    let output = folder.join(name);
    if is_fresh(&output, sources) {
        return Ok(output);
    }
    fs::create_dir_all(&folder).expect("target/tmp is writable");
    let turn = File::create(folder.join(format!("{name}.lock"))).expect("target/tmp is writable");
    turn.lock().expect("a lock");
    if is_fresh(&output, sources) {
        return Ok(output);
    }
    let private = tempfile::Builder::new().tempdir_in(&folder).expect("a temporary folder");
    let file = private.path().join(name);
    let mut command = command(&file);
    let compiler = command.get_program().to_string_lossy().into_owned();
    let result = command.output().map_err(|error| format!("{compiler}: {error}"))?;
    if !result.status.success() {
        let said = String::from_utf8_lossy(&result.stderr);
        return Err(format!("{compiler}: {}", said.lines().next().unwrap_or("failed")));
    }
    fs::rename(&file, &output).expect("rename within target/tmp");
    Ok(output)
}

/// `source` by a compiler that every machine with tests has (apt-get install gcc g++).
fn by_compiler(name: &str, compiler: &str, flags: &[&str], source: &Path, libraries: &[&str]) -> PathBuf {
    let path = built(name, &[source], |to| {
        let mut command = Command::new(compiler);
        command
            .args(flags)
            .args(["-O2", "-g", "-fomit-frame-pointer", "-o"])
            .arg(to)
            .arg(source)
            .args(libraries);
        command
    });
    path.unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// Path of the built `tests/programs/NAME`, without frame pointers.
pub fn program(name: &str) -> PathBuf {
    match source(&format!("{name}.cpp")) {
        cpp if cpp.exists() => by_compiler(name, "g++", &["-pthread"], &cpp, &[]),
        _ => by_compiler(name, "gcc", &["-pthread"], &source(&format!("{name}.c")), &[]),
    }
}

/// As [`program`], with a library; None where that is not installed.
pub fn program_with(name: &str, library: &str) -> Option<PathBuf> {
    let file = format!("-print-file-name=lib{}.so", library.trim_start_matches("-l"));
    let found = Command::new("gcc").arg(file).output().expect("gcc (apt-get install gcc)").stdout;
    let is_installed = found.starts_with(b"/");
    is_installed.then(|| by_compiler(name, "gcc", &[], &source(&format!("{name}.c")), &[library]))
}

/// As [`program`], linked statically: naming its frames needs no debugging information of libc.
pub fn static_program(name: &str) -> PathBuf {
    by_compiler(&format!("{name}-static"), "gcc", &["-static"], &source(&format!("{name}.c")), &[])
}

/// Path of `tests/programs/NAME.c` built as a shared object.
pub fn shared_object(name: &str) -> PathBuf {
    by_compiler(&format!("{name}.so"), "gcc", &["-fPIC", "-shared"], &source(&format!("{name}.c")), &[])
}

/// `tests/programs/SOURCE.c` built by `compiler` with `arguments` (libraries after the source).
///
/// # Errors
/// What the compiler said where it cannot: without a library or a linker that is not installed.
pub fn program_by(
    (output, name): (&str, &str),
    compiler: &str,
    arguments: &[&str],
) -> Result<PathBuf, String> {
    let source = source(&format!("{name}.c"));
    built(output, &[&source], |to| {
        let mut command = Command::new(compiler);
        command
            .args(["-O1", "-g", "-fno-builtin", "-o"])
            .arg(to)
            .arg(&source)
            .arg("-pthread")
            .args(arguments);
        command
    })
}

/// `tests/programs/FILE` by this compiler with these arguments.
///
/// # Errors
/// What the compiler said, or why there is none.
pub fn program_built(file: &str, compiler: &[&str]) -> Result<PathBuf, String> {
    let (name, arguments) = compiler.split_first().expect("a compiler");
    let source = source(file);
    built(&format!("{file}{}", compiler.join("")), &[&source], |to| {
        let mut command = Command::new(name);
        command.args(arguments).arg(&source).arg("-o").arg(to);
        command
    })
}

/// `tests/programs/NAME.go`, built; None without go.
pub fn go_program(name: &str, flags: &[&str]) -> Option<PathBuf> {
    go_program_of(name, if flags.is_empty() { "go" } else { "go-stripped" }, flags)
}

/// The same, of a kind that only these flags make.
pub fn go_program_of(name: &str, kind: &str, flags: &[&str]) -> Option<PathBuf> {
    let go = installed("go")?;
    let source = source(&format!("{name}.go"));
    let output = format!("{name}-{kind}");
    let path = built(&output, &[&source], |to| {
        let mut command = Command::new(go);
        command.args(["build", "-o"]).arg(to).args(flags).arg(&source);
        command.env("GO111MODULE", "off").env("GOCACHE", build_dir().join("go-cache"));
        command
    });
    Some(path.unwrap_or_else(|why| panic!("{output}: {why}")))
}

/// The demonstration program, or why it cannot be built here.
pub fn demo_program() -> Result<PathBuf, String> {
    let folder = manifest_dir().join("scripts/demo");
    let (script, source) = (folder.join("build.sh"), folder.join("two_allocators.c"));
    let found = Command::new("gcc").arg("-print-file-name=libjemalloc.a").output();
    let found = found.map_err(|e| format!("gcc: {e}"))?.stdout;
    if !found.starts_with(b"/") {
        return Err("libjemalloc.a is not installed (libjemalloc-dev)".into());
    }
    let path = built("two_allocators", &[&script, &source], |to| {
        let mut command = Command::new(&script);
        command.arg(to);
        command
    });
    Ok(path.unwrap_or_else(|why| panic!("two_allocators: {why}")))
}
