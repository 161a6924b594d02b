//! How the command is started: found, as which user, with which signals and descriptors, or not.

use crate::player::{self, argv, config, follow, is_root, modes, play, report, start};
use nix::errno::Errno;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use vmaudit::launch::{Launch, LaunchConfig, LaunchError, LaunchNote, NoHold};

const NOBODY: u32 = 65534;

/// A directory that every user may enter, with what the closure puts there.
fn public_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/tmp").expect("a directory");
    set_mode(directory.path(), 0o755);
    directory
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

fn write_file(path: &Path, text: &str, mode: u32) -> String {
    std::fs::write(path, text).expect("write");
    set_mode(path, mode);
    path.to_string_lossy().into_owned()
}

fn copy(from: &Path, to: PathBuf, mode: u32) -> String {
    std::fs::copy(from, &to).expect("copy");
    set_mode(&to, mode);
    to.to_string_lossy().into_owned()
}

/// Exit code and message of a command that cannot be started.
fn failure(words: Vec<String>) -> (u8, String) {
    let mut player = play(move || {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // An unreadable directory in PATH would make it "Permission denied", as with execvp.
        let path = ("PATH".into(), Some("/usr/bin:/bin".into()));
        let config = LaunchConfig { env: vec![path], ..config(&words) };
        match Launch::prepare(config).and_then(|prepared| prepared.go()) {
            Ok(_) => report("it runs"),
            Err(error) => report(&format!("{} {error}", error.exit_code())),
        }
    });
    let line = player.rest().remove(0);
    let (code, message) = line.split_once(' ').expect("a code and a message");
    (code.parse().expect("a code"), message.to_owned())
}

fn fails(word: &str) -> (u8, String) {
    failure(vec![word.to_owned()])
}

#[test]
fn what_is_not_found_is_127() {
    let (code, message) = fails("no-such-command-anywhere");
    assert_eq!((code, message.as_str()), (127, "no-such-command-anywhere: command not found"));
    assert_eq!(fails("/no/such/file").0, 127);
    assert_eq!(fails("").0, 127);
}

#[test]
fn what_cannot_be_executed_is_126() {
    let directory = public_directory();
    let plain = write_file(&directory.path().join("plain"), "echo no\n", 0o644);
    let (code, message) = fails(&plain);
    assert_eq!((code, message), (126, format!("{plain}: Permission denied")));
    assert_eq!(fails("/tmp").0, 126);
    let (code, message) = fails(&format!("{plain}/below"));
    assert_eq!((code, message), (126, format!("{plain}/below: Not a directory")));
}

#[test]
fn a_missing_interpreter_is_named_as_such() {
    let directory = public_directory();
    let script = write_file(&directory.path().join("script"), "#!/no/such/interpreter\n", 0o755);
    let (code, message) = fails(&script);
    assert_eq!(code, 127);
    assert!(message.contains("interpreter"), "{message}");
}

#[test]
fn no_command_is_vmaudits_own_failure() {
    let outcome = Launch::prepare(LaunchConfig::default());
    assert!(matches!(&outcome, Err(error @ LaunchError::NoCommand) if error.exit_code() == 125));
}

#[test]
fn a_script_without_interpreter_runs_in_the_shell() {
    let directory = public_directory();
    let script = write_file(&directory.path().join("script"), "echo got $1 $#\nexit 7\n", 0o755);
    let mut player = play(|| {
        let mut config = config(&[&script, "one", "two"]);
        config.hold_exits = false;
        follow(start(config));
    });
    assert_eq!(player.rest(), ["got one 2", "ended Code(7) 7"]);
}

#[test]
fn path_is_searched_as_execvp_does() {
    let directory = public_directory();
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    for each in [&first, &second] {
        std::fs::create_dir(each).expect("mkdir");
    }
    // The first one found may not be executed: the next is.
    write_file(&first.join("tool"), "#!/bin/sh\necho first\n", 0o644);
    write_file(&second.join("tool"), "#!/bin/sh\necho second\n", 0o755);
    let path = format!("/nonexistent:{}:{}:/bin", first.display(), second.display());
    let mut player = play(|| {
        let config = LaunchConfig {
            argv: argv(&["tool"]),
            env: vec![("PATH".into(), Some(path.into()))],
            ..LaunchConfig::default()
        };
        follow(start(config));
    });
    assert_eq!(player.rest(), ["second", "ended Code(0) 0"]);
}

#[test]
fn the_environment_is_changed_as_requested() {
    let mut player = play(|| {
        let mut config = config(&["/bin/sh", "-c", "echo ${A-unset} ${HOME-unset}"]);
        config.env = vec![("A".into(), Some("x=y".into())), ("HOME".into(), None)];
        config.hold_exits = false;
        follow(start(config));
    });
    assert_eq!(player.rest(), ["x=y unset", "ended Code(0) 0"]);
}

#[test]
fn signals_are_as_vmaudit_found_them_and_privileges_are_kept() {
    if !is_root() {
        return;
    }
    let mut player = play(|| follow(start(config(&[modes(), "signals"]))));
    assert_eq!(player.rest()[0], "blocked 0 sigpipe default nnp 0");
}

#[test]
fn nothing_of_vmaudits_descriptors_reaches_the_target() {
    let own = |hold_exits| {
        let mut player = play(|| {
            let mut config = config(&[modes(), "fds"]);
            config.hold_exits = hold_exits;
            follow(start(config));
        });
        player.rest().remove(0)
    };
    // What the test itself has left open is in all of them.
    let directly = play(|| {
        std::process::Command::new(modes()).arg("fds").status().expect("runs");
    })
    .rest()
    .remove(0);
    assert_eq!(own(true), directly);
    assert_eq!(own(false), directly);
}

#[test]
fn without_randomisation_two_runs_have_equal_addresses() {
    let addresses = |aslr_off| {
        let mut player = play(|| {
            let mut config = config(&[modes(), "addresses"]);
            config.aslr_off = aslr_off;
            follow(start(config));
        });
        player.rest().remove(0)
    };
    assert_eq!(addresses(true), addresses(true));
    assert_ne!(addresses(false), addresses(false));
}

#[test]
fn refused_randomisation_is_an_error_with_a_remedy() {
    if !is_root() {
        return;
    }
    let mut player = play(|| {
        refuse_personality();
        let mut config = config(&[modes(), "wait", "0"]);
        config.aslr_off = true;
        match Launch::prepare(config).and_then(|prepared| prepared.go()) {
            Ok(_) => report("it runs"),
            Err(error) => report(&format!("{} {error}", error.exit_code())),
        }
        // Neither the child nor the keeper is left.
        assert_eq!(player::children(), Vec::<i32>::new());
    });
    let lines = player.rest();
    assert!(lines[0].starts_with("125 ") && lines[0].contains("EPERM"), "{lines:?}");
    assert!(lines[0].contains("seccomp=unconfined") && lines.len() == 1, "{lines:?}");
}

#[test]
fn under_sudo_the_command_runs_as_the_invoking_user() {
    if !is_root() {
        return;
    }
    let lines = |as_root| {
        let mut player = play(|| {
            pretend_sudo();
            let script = "id -u; id -g; id -G; echo ${HOME-} ${USER-} ${LOGNAME-} ${SUDO_UID-none}";
            let mut config = config(&["/bin/sh", "-c", script]);
            (config.as_root, config.hold_exits) = (as_root, false);
            follow(start(config));
        });
        player.rest()
    };
    let nobody = nix::unistd::User::from_uid(Uid::from_raw(NOBODY)).expect("passwd").expect("nobody");
    let environment = format!("{} nobody nobody none", nobody.dir.display());
    assert_eq!(lines(false)[..4], ["65534", "65534", "65534", &environment]);
    assert_eq!(lines(true)[..2], ["0", "0"]);
    assert!(lines(true)[3].ends_with(" 65534"));
}

#[test]
fn a_setuid_program_keeps_its_power() {
    if !is_root() {
        return;
    }
    let directory = public_directory();
    let id = copy(Path::new("/usr/bin/id"), directory.path().join("id"), 0o4755);
    let effective = |id: String| {
        let mut player = play(|| {
            pretend_sudo();
            let mut config = config(&["/bin/sh", "-c", &format!("{id} -u; {id} -ru; exit 0")]);
            config.as_root = false;
            let running = start(config);
            report(&format!("{:?}", running.notes()));
            follow(running);
        });
        let mut lines = player.rest();
        lines.retain(|line| line.parse::<u32>().is_ok() || line.starts_with('['));
        lines.sort();
        lines
    };
    assert_eq!(effective(id), ["0", "65534", "[]"]);
    assert_eq!(effective("/usr/bin/id".to_owned()), ["65534", "65534", "[]"]);
}

#[test]
fn without_privileges_exits_are_held_and_no_new_privs_is_noted() {
    if !is_root() {
        return;
    }
    let directory = public_directory();
    let program = copy(Path::new(modes()), directory.path().join("modes"), 0o755);
    let mut player = play(|| {
        become_nobody();
        let running = start(config(&[&program, "exit", "31"]));
        assert!(running.notes().contains(&LaunchNote::NoNewPrivileges));
        follow(running);
    });
    assert_eq!(player.rest(), ["held main ExitGroup status 31 leader true", "ended Code(31) 31"]);
}

#[test]
fn without_privileges_a_setuid_command_is_not_crippled_for_the_hold() {
    if !is_root() {
        return;
    }
    let directory = public_directory();
    let id = copy(Path::new("/usr/bin/id"), directory.path().join("id"), 0o4755);
    let mut player = play(|| {
        become_nobody();
        let running = start(config(&[&id, "-u"]));
        assert_eq!(running.notes(), [LaunchNote::NoHold(NoHold::SetuidCommand)]);
        follow(running);
    });
    assert_eq!(player.rest(), ["0", "ended Code(0) 0"]);
}

#[test]
fn where_a_listener_is_in_place_the_command_runs_without_hold() {
    if !is_root() {
        return;
    }
    let mut player = play(|| {
        install_listener();
        let running = start(config(&[modes(), "exit", "32"]));
        assert_eq!(running.notes(), [LaunchNote::NoHold(NoHold::Refused(Errno::EBUSY))]);
        follow(running);
    });
    assert_eq!(player.rest(), ["ended Code(32) 32"]);
}

#[test]
fn a_target_that_installs_a_listener_gets_ebusy() {
    let mut player = play(|| follow(start(config(&[modes(), "listener"]))));
    assert_eq!(player.rest()[0], format!("listener {}", Errno::EBUSY as i32));
}

fn pretend_sudo() {
    for (key, value) in [("SUDO_UID", "65534"), ("SUDO_GID", "65534"), ("SUDO_USER", "nobody")] {
        // SAFETY: the player has one thread.
        unsafe { std::env::set_var(key, value) };
    }
}

fn become_nobody() {
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[gid]).expect("setgroups");
    setresgid(gid, gid, gid).expect("setresgid");
    setresuid(uid, uid, uid).expect("setresuid");
    // The change of user made /proc/self root's.
    nix::sys::prctl::set_dumpable(true).expect("dumpable");
}

fn instruction(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// A filter that allows everything, with a listener.
fn install_listener() {
    install(&[instruction(RETURN, libc::SECCOMP_RET_ALLOW)], libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
}

/// As a container's default profile does.
fn refuse_personality() {
    let mut is_personality = instruction(JUMP_EQUAL, libc::SYS_personality as u32);
    is_personality.jf = 1;
    let program = [
        instruction(LOAD_WORD, 0),
        is_personality,
        instruction(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        instruction(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    install(&program, 0);
}

/// A listener stays open for good.
fn install(program: &[libc::sock_filter], flags: libc::c_ulong) {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the program points to `len` instructions, which the kernel copies.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program) };
    assert!(result >= 0);
}
