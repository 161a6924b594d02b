//! The command as execve needs it: candidates from PATH, argument and environment vectors.

use super::error::LaunchError;
use nix::errno::Errno;
use std::convert::Infallible;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Where execvp searches when PATH is not set (confstr(_CS_PATH) of glibc).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Interpreter of a script without `#!` (execvp(3)).
const SHELL: &CStr = c"/bin/sh";

/// Everything execve needs, made before the fork.
#[derive(Debug)]
pub struct Command {
    /// As the user typed it.
    pub name: String,
    /// The name has no slash: PATH is searched.
    searched: bool,
    /// Paths to try, in order; never empty.
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Command {
    pub fn new(argv: &[OsString], environment: Vec<(OsString, OsString)>) -> Result<Command, LaunchError> {
        let program = argv.first().ok_or(LaunchError::NoCommand)?;
        let path = environment.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_os_str());
        let candidates = candidates(program, path)
            .into_iter()
            .map(|path| c_string(path.into_os_string()))
            .collect::<Result<_, _>>()?;
        let arguments = argv.iter().cloned().map(c_string).collect::<Result<_, _>>()?;
        let environment = environment
            .into_iter()
            .map(|(mut pair, value)| {
                pair.push("=");
                pair.push(value);
                c_string(pair)
            })
            .collect::<Result<_, _>>()?;
        let name = program.to_string_lossy().into_owned();
        let searched = !has_directory(program);
        Ok(Command { name, searched, candidates, arguments, environment })
    }

    /// The failure of the candidate with that index, as an error for the user.
    pub fn explain(&self, candidate: usize, errno: Errno) -> LaunchError {
        let path = self.candidates.get(candidate).map(|path| path.to_string_lossy().into_owned());
        let present = path.as_ref().is_some_and(|path| std::fs::symlink_metadata(path).is_ok());
        match (errno, path) {
            (Errno::ENOENT, Some(command)) if present => LaunchError::InterpreterMissing { command },
            (Errno::ENOENT, _) => LaunchError::NotFound { command: self.name.clone() },
            (errno, path) => {
                LaunchError::CannotExecute { command: path.unwrap_or_else(|| self.name.clone()), errno }
            }
        }
    }

    /// The first candidate that is there at all. None: there is none, and no permission is
    /// lacking to know that.
    pub fn first_present(&self) -> Option<PathBuf> {
        let paths = self.candidates.iter().map(|path| PathBuf::from(OsStr::from_bytes(path.as_bytes())));
        paths.into_iter().find(|path| match std::fs::metadata(path) {
            Ok(_) => true,
            Err(error) => !self.goes_on(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
        })
    }

    /// Replaces this process, as execvp would: the next candidate after those that are not
    /// there or not permitted, /bin/sh for a file that is no program. Returns the failure that
    /// counts and the index of its candidate.
    pub fn execute(&self) -> (Errno, usize) {
        let mut denied = None;
        let mut failure = (Errno::ENOENT, 0);
        for (index, path) in self.candidates.iter().enumerate() {
            let Err(errno) = self.execute_one(path);
            failure = (errno, index);
            match errno {
                Errno::EACCES => denied = Some(failure),
                _ if self.goes_on(errno) => {}
                _ => break,
            }
        }
        denied.unwrap_or(failure)
    }

    /// The failures after which execvp tries the next directory (posix/execvpe.c of glibc). A
    /// name with a slash is not searched for, and only ENOENT says that it is not there.
    fn goes_on(&self, errno: Errno) -> bool {
        let elsewhere = matches!(errno, Errno::ESTALE | Errno::ENOTDIR | Errno::ENODEV | Errno::ETIMEDOUT);
        errno == Errno::ENOENT || self.searched && elsewhere
    }

    fn execute_one(&self, path: &CStr) -> Result<Infallible, Errno> {
        match nix::unistd::execve(path, &self.arguments, &self.environment) {
            Err(Errno::ENOEXEC) => {
                let script = [SHELL, path].into_iter();
                let rest = self.arguments.iter().skip(1).map(CString::as_c_str);
                let arguments: Vec<&CStr> = script.chain(rest).collect();
                // The shell's own failure says less than what was wrong with the file.
                nix::unistd::execve(SHELL, &arguments, &self.environment).map_err(|_| Errno::ENOEXEC)
            }
            other => other,
        }
    }
}

/// The paths execvp tries: the name itself when it holds a slash, else one for each directory
/// of PATH, where an empty one is the current directory.
fn candidates(program: &OsStr, path: Option<&OsStr>) -> Vec<PathBuf> {
    if has_directory(program) {
        return vec![PathBuf::from(program)];
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    path.as_bytes()
        .split(|&byte| byte == b':')
        .map(|directory| match directory {
            b"" => PathBuf::from(OsStr::new(".")).join(program),
            directory => PathBuf::from(OsStr::from_bytes(directory)).join(program),
        })
        .collect()
}

/// True for the empty name, too, which nothing is found under.
fn has_directory(program: &OsStr) -> bool {
    program.is_empty() || program.as_bytes().contains(&b'/')
}

fn c_string(word: OsString) -> Result<CString, LaunchError> {
    CString::new(word.clone().into_vec()).map_err(|_| LaunchError::NulByte { word })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(program: &str, path: Option<&str>) -> Vec<String> {
        let found = candidates(OsStr::new(program), path.map(OsStr::new));
        found.into_iter().map(|path| path.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn searches_where_execvp_does() {
        assert_eq!(paths("ls", Some("/a:/b")), ["/a/ls", "/b/ls"]);
        assert_eq!(paths("ls", Some(":/b:")), ["./ls", "/b/ls", "./ls"]);
        assert_eq!(paths("ls", None), ["/bin/ls", "/usr/bin/ls"]);
        assert_eq!(paths("./ls", Some("/a")), ["./ls"]);
        assert_eq!(paths("", Some("/a")), [""]);
    }

    #[test]
    fn refuses_what_no_program_can_get() {
        assert!(matches!(Command::new(&[], vec![]), Err(LaunchError::NoCommand)));
        let argv = [OsString::from("a"), OsString::from("b\0c")];
        assert!(matches!(Command::new(&argv, vec![]), Err(LaunchError::NulByte { .. })));
    }

    #[test]
    fn knows_what_is_surely_not_there() {
        let present = |name: &str, path: &str| {
            let environment = vec![("PATH".into(), path.into())];
            Command::new(&[name.into()], environment).ok().and_then(|command| command.first_present())
        };
        assert_eq!(present("sh", "/nonexistent:/bin"), Some("/bin/sh".into()));
        assert_eq!(present("no-such-command", "/nonexistent:/bin"), None);
        assert_eq!(present("", "/bin"), None);
        // A directory is there, and execve will say what is wrong with it.
        assert_eq!(present("/bin", ""), Some("/bin".into()));
    }
}
