//! A terminal of a test's own: tmux with a server of its own, keys sent, the screen read back.

use super::container::unique;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing in these tests takes a tenth of it on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Dropped, it ends with all that runs in it.
pub struct Terminal {
    socket: String,
    /// Where the socket is: tmux leaves it behind.
    folder: tempfile::TempDir,
}

impl Terminal {
    /// `script` runs in a shell on a screen of this size, and the screen stays when it has ended.
    ///
    /// # Errors
    /// In words, for a SKIP line.
    pub fn start(name: &str, size: (u16, u16), script: &str) -> Result<Terminal, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let terminal = Terminal { socket: unique(name), folder };
        let (width, height) = (size.0.to_string(), size.1.to_string());
        let mut start = terminal.command();
        // What runs in it shall not depend on who runs the test.
        start.env("TERM", "xterm").env("SHELL", "/bin/sh").env_remove("NO_COLOR").env_remove("TMUX");
        start.args(["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, script]);
        let output = start.output().map_err(|error| format!("tmux: {error} (apt-get install tmux)"))?;
        match output.status.success() {
            true => Ok(terminal),
            false => Err(format!("tmux: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// UTF-8 whatever the locale says.
    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-u", "-L", &self.socket]).env("TMUX_TMPDIR", self.folder.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> String {
        let output = self.command().args(words).output().expect("tmux");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Keys by tmux' names: `Enter`, `Escape`, `Down`, `C-c`, or letters.
    pub fn press(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    pub fn resize(&self, (width, height): (u16, u16)) {
        self.run(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    pub fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// With its colours, as escape sequences.
    pub fn colored(&self) -> String {
        self.run(&["capture-pane", "-p", "-e"])
    }

    /// The screen, as soon as it is as expected.
    ///
    /// # Panics
    /// When it never is: with the screen as it is.
    pub fn until(&self, expected: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if expected(&screen) {
                return screen;
            }
            assert!(begun.elapsed() < LIMIT, "it never came to that; the screen is\n{screen}");
        }
    }

    /// The screen, as soon as all of this is on it.
    pub fn shows(&self, parts: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            let missing: Vec<_> = parts.iter().filter(|part| !screen.contains(**part)).collect();
            if missing.is_empty() {
                return screen;
            }
            assert!(begun.elapsed() < LIMIT, "{missing:?} never came; the screen is\n{screen}");
        }
    }

    /// The process that the shell runs.
    pub fn child(&self) -> i32 {
        let shell = self.run(&["display-message", "-p", "#{pane_pid}"]);
        let shell = shell.trim();
        let file = format!("/proc/{shell}/task/{shell}/children");
        let children = std::fs::read_to_string(&file).expect("the shell lives");
        children.split_ascii_whitespace().next().expect("a child").parse().expect("a number")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.command().arg("kill-server").output();
    }
}
