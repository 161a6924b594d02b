//! A headless Chromium, driven through its debugging pipe: messages of the DevTools protocol, each
//! ended by a NUL byte, on file descriptors 3 and 4 (content/browser/devtools/devtools_pipe_handler.cc).

pub mod firefox;
pub mod sample;

use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// No request to the browser takes long; one that hangs fails the test.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where Chromium is, or why there is none.
pub fn chromium() -> Result<PathBuf, String> {
    let names = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    found
        .into_iter()
        .find(|file| file.is_file())
        .ok_or_else(|| "no chromium (apt-get install chromium)".to_owned())
}

pub struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    session: Option<String>,
    last: u64,
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

/// Both ends of a pipe, closed at exec.
fn pipe() -> (File, File) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let (reader, writer): (std::os::fd::OwnedFd, std::os::fd::OwnedFd) = (reader.into(), writer.into());
    (reader.into(), writer.into())
}

impl Browser {
    /// With one empty page, `width` × `height` pixels.
    pub fn start(file: &Path, (width, height): (u32, u32)) -> Browser {
        let profile = tempfile::tempdir().expect("a folder");
        let (commands, to) = pipe();
        let (answers, replies) = pipe();
        let (commands_fd, replies_fd) = (commands.as_raw_fd(), replies.as_raw_fd());
        let mut command = Command::new(file);
        command
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"])
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        // SAFETY: between fork and exec only dup2, which is async-signal-safe; first out of the way of 3
        // and 4, which the descriptors may be themselves.
        unsafe {
            command.pre_exec(move || {
                let moved = [commands_fd, replies_fd].map(|fd| libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 10));
                for (from, to) in moved.into_iter().zip([3, 4]) {
                    if from < 0 || libc::dup2(from, to) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let child = command.spawn().expect("chromium starts");
        drop((commands, replies));
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0) {
                let Ok(message) = message else { return };
                let value = serde_json::from_slice(&message).expect("JSON from the browser");
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Browser { child, to, from, session: None, last: 0, events: Vec::new(), _profile: profile };
        let page = browser.command("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            browser.command("Target.attachToTarget", json!({"targetId": page["targetId"], "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            browser.command(domain, json!({}));
        }
        browser
    }

    fn next(&mut self) -> Value {
        self.from.recv_timeout(PATIENCE).expect("the browser answers")
    }

    pub fn command(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser listens");
        loop {
            let mut answer = self.next();
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    /// Opens a file from disk, and waits until it is drawn.
    pub fn open(&mut self, file: &Path) {
        self.events.clear();
        self.command("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.next();
            self.events.push(event);
        }
        self.run("document.documentElement.style.scrollBehavior = 'auto'");
        self.drawn();
    }

    /// Until two frames were drawn.
    pub fn drawn(&mut self) {
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))");
    }

    /// The value of an expression; a promise is waited for.
    pub fn run(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.command("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    pub fn text(&mut self, selector: &str) -> String {
        let value = self.run(&format!("document.querySelector({}).textContent", json!(selector)));
        value.as_str().expect("a text").to_owned()
    }

    pub fn number(&mut self, expression: &str) -> i64 {
        let value = self.run(expression);
        value.as_f64().unwrap_or_else(|| panic!("{expression}: {value}")) as i64
    }

    pub fn truth(&mut self, expression: &str) -> bool {
        self.run(expression).as_bool().unwrap_or_else(|| panic!("{expression}: no yes or no"))
    }

    /// Waits until an expression is true; the page's own timers are all there is to wait for.
    pub fn until(&mut self, expression: &str) {
        let each_frame = format!(
            "new Promise((done) => {{ const look = () => ({expression}) ? done(0) : requestAnimationFrame(look); look(); }})"
        );
        self.run(&each_frame);
    }

    /// A real click half way down what a selector finds, at a part of its width.
    pub fn click_at(&mut self, selector: &str, part: f64) {
        self.click_with(selector, part, 0);
    }

    /// `modifiers`: 1 Alt, 2 Ctrl, 4 Meta, 8 Shift.
    pub fn click_with(&mut self, selector: &str, part: f64, modifiers: u32) {
        let place = format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{block: 'center'}}); \
             const b = e.getBoundingClientRect(); return [b.left + b.width * {part}, b.top + b.height / 2]; }})()",
            json!(selector)
        );
        let place = self.run(&place);
        self.drawn();
        for (kind, buttons) in [("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)] {
            let params = json!({"type": kind, "x": place[0], "y": place[1], "button": "left",
                                "buttons": buttons, "clickCount": 1, "modifiers": modifiers});
            self.command("Input.dispatchMouseEvent", params);
        }
        self.drawn();
    }

    pub fn click(&mut self, selector: &str) {
        self.click_at(selector, 0.5);
    }

    /// A key that is pressed and released, as `KeyboardEvent.key` names it.
    pub fn key(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "End" => 35,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            "PageDown" => 34,
            "Tab" => 9,
            _ => 0,
        };
        let text = match key {
            "Enter" => "\r",
            key if key.chars().count() == 1 => key,
            _ => "",
        };
        let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        self.command(
            "Input.dispatchKeyEvent",
            json!({"type": down, "key": key, "windowsVirtualKeyCode": code, "text": text}),
        );
        self.command(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code}),
        );
        self.drawn();
    }

    /// Types into what a selector finds, in place of what is there.
    pub fn fill(&mut self, selector: &str, text: &str) {
        let clear = format!(
            "(() => {{ const e = document.querySelector({}); e.focus(); e.value = ''; }})()",
            json!(selector)
        );
        self.run(&clear);
        self.command("Input.insertText", json!({"text": text}));
        self.drawn();
    }

    /// What went wrong in the page: errors, warnings, violations of its policy, and requests but for the
    /// file itself.
    pub fn complaints(&mut self) -> Vec<String> {
        self.drawn();
        let bad = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" | "Log.entryAdded" => true,
            "Runtime.consoleAPICalled" => true,
            "Network.requestWillBeSent" => event["params"]["type"] != "Document",
            _ => false,
        };
        self.events.iter().filter(bad).map(|event| event["params"].to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = self.child.id() as i32;
        // SAFETY: a signal to the process group that the browser was started as the leader of; it is not
        // waited for yet, so that the number is still its own.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        let _ = self.child.wait();
    }
}
