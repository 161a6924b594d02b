//! Files that another user put where vmaudit writes or reads: links, FIFOs, files, journals, folders. Each test is
//! one of root's vmaudit against another user, and of that user's against a third. docs/security.md names these tests.

use crate::support::unprivileged::{Bench, finish, skip_without_root};
use crate::support::{Guard, skip_this, vmaudit};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vmaudit::store::{Facts, Recorder, RunMeta};

/// Neither root nor [`NOBODY`].
const STRANGER: u32 = 54_321;
const NOBODYS: u32 = 65_534;

/// vmaudit as root, and as another user.
fn both(bench: &Bench) -> [(u32, Command); 2] {
    let mut root = Command::new(vmaudit());
    root.current_dir(bench.path(""));
    [(0, root), (NOBODYS, bench.with(&[]))]
}

/// A report that everybody may make.
fn report(mut command: Command, to: &Path) -> (Option<i32>, String) {
    let (output, said) = finish(command.args(["snapshot", "--smaps", "smaps", "--report"]).arg(to));
    (output.status.code(), said)
}

/// With a saved snapshot, and a folder that everybody can write.
fn bench(mode: u32) -> (Bench, PathBuf) {
    let bench = Bench::new();
    fs::write(bench.path("smaps"), "1000-2000 rw-p 00000000 00:00 0 \nRss: 4 kB\n").expect("written");
    let shared = bench.path("shared");
    fs::create_dir(&shared).expect("a folder");
    fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).expect("chmod");
    (bench, shared)
}

/// A user's file that others may write.
fn file_of(path: &Path, owner: u32, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("chmod");
    chown(path, Some(owner), Some(owner)).expect("chown");
}

fn link_of(path: &Path, owner: u32, to: &Path) {
    symlink(to, path).expect("a link");
    lchown(path, Some(owner), Some(owner)).expect("lchown");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("readable").flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_strangers_link_is_not_followed() {
    if skip_without_root("a_strangers_link_is_not_followed") {
        return;
    }
    // Without a sticky bit the kernel protects nothing; with one, not what a program resolves itself.
    for mode in [0o1777, 0o777] {
        let (bench, shared) = bench(mode);
        for (user, _) in both(&bench) {
            let theirs = bench.path(&format!("theirs{user}"));
            fs::create_dir(&theirs).expect("a folder");
            chown(&theirs, Some(user), None).expect("chown");
            file_of(&theirs.join("precious"), user, "kept");
            for (name, to) in [("link", "precious"), ("dangling", "missing")] {
                link_of(&shared.join(name), STRANGER, &theirs.join(to));
            }
            link_of(&shared.join("folder"), STRANGER, &theirs);
            // A stranger's link to a link of the user's own.
            link_of(&theirs.join("own"), user, Path::new("precious"));
            link_of(&shared.join("twice"), STRANGER, &theirs.join("own"));
            let of_user =
                |which: u32| both(&bench).into_iter().find(|(user, _)| *user == which).expect("one").1;
            for name in ["link", "dangling", "folder/new", "twice"] {
                let (code, said) = report(of_user(user), &shared.join(name));
                assert_eq!(code, Some(125), "{mode:o} {user} {name}: {said}");
                assert!(said.contains("symbolic link of another user (uid 54321)"), "{said}");
            }
            assert_eq!(names(&theirs), ["own", "precious"]);
            assert_eq!(fs::read_to_string(theirs.join("precious")).expect("there"), "kept");
            // Their own ones go on working, there and elsewhere.
            link_of(&shared.join("mine"), user, &theirs.join("own"));
            let (code, said) = report(of_user(user), &shared.join("mine"));
            assert_eq!(code, Some(0), "{mode:o} {user}: {said}");
            assert!(fs::read_to_string(theirs.join("precious")).expect("there").contains("VIRT"));
            assert!(fs::symlink_metadata(shared.join("mine")).expect("there").is_symlink());
            for name in names(&shared) {
                fs::remove_file(shared.join(name)).expect("removed");
            }
        }
    }
}

#[test]
fn a_strangers_file_or_fifo_is_not_written_to() {
    if skip_without_root("a_strangers_file_or_fifo_is_not_written_to") {
        return;
    }
    for mode in [0o1777, 0o777] {
        let (bench, shared) = bench(mode);
        for (user, command) in both(&bench) {
            let (file, fifo) = (shared.join(format!("file{user}")), shared.join(format!("fifo{user}")));
            file_of(&file, STRANGER, "theirs");
            nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o666)).expect("a FIFO");
            fs::set_permissions(&fifo, fs::Permissions::from_mode(0o666)).expect("chmod");
            chown(&fifo, Some(STRANGER), None).expect("chown");
            let before = names(&shared);
            let (code, said) = report(command, &file);
            assert!(code == Some(125) && said.contains("another user's file"), "{mode:o} {user}: {said}");
            assert_eq!(fs::read_to_string(&file).expect("there"), "theirs");
            let (_, command) = both(&bench).into_iter().find(|(other, _)| *other == user).expect("one");
            let (code, said) = report(command, &fifo);
            assert!(code == Some(125) && said.contains("another user's FIFO"), "{mode:o} {user}: {said}");
            assert!(fs::metadata(&fifo).expect("there").file_type().is_fifo());
            assert_eq!(names(&shared), before);
            // A file of the user's own with a second name elsewhere.
            file_of(&bench.path("mine"), user, "mine");
            fs::hard_link(bench.path("mine"), shared.join("hard")).expect("a link");
            let (_, command) = both(&bench).into_iter().find(|(other, _)| *other == user).expect("one");
            let (code, said) = report(command, &shared.join("hard"));
            assert!(code == Some(125) && said.contains("hard links"), "{mode:o} {user}: {said}");
            assert_eq!(fs::read_to_string(bench.path("mine")).expect("there"), "mine");
            fs::remove_file(shared.join("hard")).expect("removed");
            fs::remove_file(bench.path("mine")).expect("removed");
            // The user's own is replaced.
            let own = shared.join(format!("own{user}"));
            file_of(&own, user, "older");
            let (_, command) = both(&bench).into_iter().find(|(other, _)| *other == user).expect("one");
            let (code, said) = report(command, &own);
            assert_eq!(code, Some(0), "{mode:o} {user}: {said}");
            let found = fs::metadata(&own).expect("there");
            assert_eq!((found.uid(), found.mode() & 0o7777), (user, 0o666));
            assert!(fs::read_to_string(&own).expect("there").contains("VIRT"));
        }
    }
}

fn record(path: &Path) {
    let recorder = Recorder::create(path, &RunMeta::default(), None).expect("a new file");
    recorder.finish(&Facts::default()).expect("written");
}

/// A journal that cuts the file to a page, and has SQLite delete another one.
fn journal(victim: &Path) -> Vec<u8> {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    const PAGE: u32 = 4096;
    let mut bytes = MAGIC.to_vec();
    for word in [0, 0, 1, 512, PAGE] {
        bytes.extend(u32::to_be_bytes(word));
    }
    bytes.resize(512, 0);
    let name = victim.as_os_str().as_encoded_bytes();
    let sum: u32 = name.iter().map(|&byte| u32::from(byte)).sum();
    bytes.extend((0x4000_0000 / PAGE + 1).to_be_bytes());
    bytes.extend(name);
    bytes.extend((name.len() as u32).to_be_bytes());
    bytes.extend(sum.to_be_bytes());
    bytes.extend(MAGIC);
    bytes
}

/// The commands that read a recording, and one that makes a new one in its place.
fn readers(recording: &str) -> [Vec<&str>; 5] {
    [
        vec!["report", recording],
        vec!["events", recording],
        vec!["explain", recording, "0x1000"],
        vec!["diff", recording, recording],
        vec!["run", "--backend", "notify", "--as-root", "-o", recording, "--", "/bin/true"],
    ]
}

#[test]
fn a_strangers_journal_changes_nothing() {
    if skip_without_root("a_strangers_journal_changes_nothing") {
        return;
    }
    let (bench, shared) = bench(0o1777);
    for (user, _) in both(&bench) {
        let (recording, victim) = (shared.join(format!("rec{user}")), bench.path(&format!("victim{user}")));
        record(&recording);
        chown(&recording, Some(user), None).expect("chown");
        file_of(&victim, user, "kept");
        let before = fs::read(&recording).expect("there");
        let beside = shared.join(format!("rec{user}-journal"));
        let plain = bench.path("plain-journal");
        let path = recording.to_str().expect("UTF-8");
        let refused = |what: &str| {
            let there = names(&shared);
            for words in readers(path) {
                let (_, mut command) = both(&bench).into_iter().find(|(one, _)| *one == user).expect("one");
                let (output, said) = finish(command.args(&words));
                assert_eq!(output.status.code(), Some(125), "{user} {what} {words:?}: {said}");
                assert!(said.contains("-journal: ") && said.contains("is not used"), "{what}: {said}");
            }
            assert!(fs::read(&recording).expect("there") == before, "{user} {what}");
            assert_eq!(fs::read_to_string(&victim).expect("there"), "kept", "{user} {what}");
            assert_eq!(names(&shared), there);
        };
        fs::write(&beside, journal(&victim)).expect("written");
        chown(&beside, Some(STRANGER), None).expect("chown");
        refused("a stranger's");
        fs::remove_file(&beside).expect("removed");
        // Also where the user has copied it, and owns it therefore.
        file_of(&beside, user, "");
        fs::write(&beside, journal(&victim)).expect("written");
        refused("the user's own, of two files");
        fs::remove_file(&beside).expect("removed");
        file_of(&plain, user, "some bytes");
        link_of(&beside, STRANGER, &plain);
        refused("a link");
        fs::remove_file(&beside).expect("removed");
        // What SQLite would take for a write-ahead log is not looked at.
        let log = shared.join(format!("rec{user}-wal"));
        file_of(&log, STRANGER, &"x".repeat(9000));
        let (_, mut command) = both(&bench).into_iter().find(|(one, _)| *one == user).expect("one");
        let (output, said) = finish(command.args(["events", path]));
        assert_eq!(output.status.code(), Some(0), "{user}: {said}");
        assert!(fs::read(&recording).expect("there") == before);
        fs::remove_file(&log).expect("removed");
    }
    assert_eq!(names(&shared), ["rec0", "rec65534"], "nothing was left there");
}

#[test]
fn a_strangers_recording_is_not_set_aside() {
    if skip_without_root("a_strangers_recording_is_not_set_aside") {
        return;
    }
    let (bench, shared) = bench(0o777);
    let recording = shared.join("rec");
    record(&recording);
    chown(&recording, Some(STRANGER), None).expect("chown");
    fs::set_permissions(&recording, fs::Permissions::from_mode(0o666)).expect("chmod");
    let before = fs::read(&recording).expect("there");
    for (user, mut command) in both(&bench) {
        let words = readers(recording.to_str().expect("UTF-8"));
        let (output, said) = finish(command.args(&words[4]));
        assert_eq!(output.status.code(), Some(125), "{user}: {said}");
        assert!(said.contains("another user's file (uid 54321)"), "{said}");
        assert!(fs::read(&recording).expect("there") == before && names(&shared) == ["rec"], "{user}");
    }
}

#[test]
fn the_library_is_put_where_nobody_else_can_change_it() {
    if skip_without_root("the_library_is_put_where_nobody_else_can_change_it") {
        return;
    }
    let bench = Bench::new();
    let armed = |user: u32, folder: &Path| {
        let (_, mut command) = both(&bench).into_iter().find(|(one, _)| *one == user).expect("one");
        let (output, said) = finish(command.arg("heap").arg(format!("--arm={}", folder.display())));
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &said)
    };
    // The bench itself can be written by all.
    let (code, said) = armed(0, &bench.path("own"));
    assert!(code != Some(0) && said.contains("other users can write"), "{said}");
    fs::set_permissions(bench.path(""), fs::Permissions::from_mode(0o755)).expect("chmod");
    for user in [0, NOBODYS] {
        let own = bench.path(&format!("own{user}"));
        fs::create_dir(&own).expect("a folder");
        chown(&own, Some(user), Some(user)).expect("chown");
        let (code, said) = armed(user, &own);
        assert_eq!(code, Some(0), "{user}: {said}");
        let library = PathBuf::from(said.trim().strip_prefix("LD_PRELOAD=").expect("a path"));
        let (code, again) = armed(user, &own);
        assert_eq!((code, &again), (Some(0), &said), "what is there stays");
        let name = library.file_name().expect("a name");
        let bytes = fs::read(&library).expect("the library");
        let refuses = |folder: &Path, why: &str| {
            let (code, said) = armed(user, folder);
            assert!(code != Some(0) && said.contains(why), "{user} {why}: {said}");
            assert!(!said.contains("LD_PRELOAD="), "{said}");
        };
        // Equal bytes of a stranger's, who can change them later.
        chown(&library, Some(STRANGER), None).expect("chown");
        refuses(&own, "is another user's");
        chown(&library, Some(user), None).expect("chown");
        fs::set_permissions(&library, fs::Permissions::from_mode(0o777)).expect("chmod");
        refuses(&own, "others can write it");
        fs::remove_file(&library).expect("removed");
        fs::write(own.join("elsewhere"), &bytes).expect("written");
        link_of(&library, user, Path::new("elsewhere"));
        refuses(&own, "no regular file");
        fs::remove_file(&library).expect("removed");
        // Folders in which others could put theirs.
        for mode in [0o1777, 0o777, 0o775] {
            fs::set_permissions(&own, fs::Permissions::from_mode(mode)).expect("chmod");
            chown(&own, None, Some(STRANGER)).expect("chown");
            refuses(&own, "other users can write");
            assert!(!own.join(name).exists());
        }
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).expect("chmod");
        let below = own.join("below");
        fs::create_dir(&below).expect("a folder");
        chown(&below, Some(STRANGER), None).expect("chown");
        refuses(&below, "belongs to another user (uid 54321)");
        let deeper = below.join("deeper");
        fs::create_dir(&deeper).expect("a folder");
        chown(&deeper, Some(user), None).expect("chown");
        refuses(&deeper, "belongs to another user (uid 54321)");
    }
}

/// Makes `$3` a root of its own for the JVM `$1`, in which /tmp is what `$2` makes of it, and starts it there as a
/// user to whom nothing outside belongs.
const JAIL: &str = r#"
    set -e
    mkdir -p $3/proc $3/own
    for name in usr lib lib64 bin etc dev opt; do
        [ -e /$name ] && mkdir -p $3/$name && mount --bind $(readlink -f /$name) $3/$name
    done
    mount -t proc proc $3/proc
    cp $4 $3/own/Wait.java
    cd $3
    eval "$2"
    exec chroot --userspec=54321:54321 . $1 -XX:-UsePerfData -XX:NativeMemoryTracking=summary -Xmx64m /own/Wait.java
"#;

const WAIT: &str = r#"public class Wait {
    public static void main(String[] arguments) throws Exception {
        System.out.println("READY");
        System.in.read();
    }
}
"#;

/// A JVM in a root of its own, that is up; None where there is none.
fn jailed(java: &Path, root: &Path, tmp: &str) -> Guard {
    let source = root.with_file_name("Wait.java");
    fs::write(&source, WAIT).expect("written");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-c", JAIL, "jail"]);
    command.arg(java).arg(tmp).arg(root).arg(&source);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut guard = Guard(child);
    let mut line = String::new();
    BufReader::new(guard.0.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("it speaks");
    assert_eq!(line, "READY\n");
    guard
}

#[test]
fn nothing_is_made_outside_of_a_runtimes_root() {
    let test = "nothing_is_made_outside_of_a_runtimes_root";
    if skip_without_root(test) {
        return;
    }
    let java = fs::canonicalize("/usr/bin/java");
    // One that compiles, in a folder that its root has, too.
    let is_whole = |java: &PathBuf| java.starts_with("/usr") && java.with_file_name("javac").exists();
    let Some(java) = java.ok().filter(is_whole) else { return skip_this("no JDK in /usr") };
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).expect("a folder");
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o755)).expect("chmod");
    let bound = format!("mkdir -p tmp; mount --bind {} tmp", outside.display());
    // To where the link leads from the host, and from inside; a folder that it may not write.
    let ways = [
        ("link", format!("ln -s {} tmp", outside.display()), "its /tmp is a symbolic link"),
        ("relative", "ln -s ../outside tmp".to_owned(), "its /tmp is a symbolic link"),
        ("mount", bound, "it may not write there itself"),
        ("own", "mkdir -m 1777 tmp".to_owned(), ""),
    ];
    for (name, tmp, why) in ways {
        let root = folder.path().join(name);
        let jvm = jailed(&java, &root, &tmp);
        let before = changed(&outside);
        let mut heap = Command::new(vmaudit());
        heap.args(["heap", "--runtime", "-f", "json", "-p", &jvm.0.id().to_string()]);
        let (output, said) = finish(&mut heap);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &said;
        assert_eq!(changed(&outside), before, "{name}: {printed}");
        match why {
            "" => assert!(output.status.success() && printed.contains("Java Heap"), "{name}: {printed}"),
            why => assert!(printed.contains(why), "{name}: {printed}"),
        }
    }
}

/// When something was last made or removed in a folder.
fn changed(folder: &Path) -> (i64, i64) {
    let found = fs::metadata(folder).expect("there");
    (found.mtime(), found.mtime_nsec())
}
