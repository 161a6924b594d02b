//! A headless Firefox, driven by Marionette: `length:[type, id, method, parameters]` over TCP
//! (remote/marionette in its source).

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
/// The key of an element's number in an answer (WebDriver, "web element identifier").
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Where Firefox is, or why there is none.
pub fn firefox() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let names = ["firefox-esr", "firefox"];
    let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    found
        .into_iter()
        .find(|file| file.is_file())
        .ok_or_else(|| "no Firefox (apt-get install firefox-esr)".into())
}

pub struct Firefox {
    child: Child,
    // kept open: it writes there
    _said: BufReader<ChildStdout>,
    connection: Option<BufReader<TcpStream>>,
    last: u64,
    _profile: tempfile::TempDir,
}

impl Firefox {
    pub fn start(file: &Path) -> Firefox {
        let profile = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let settings = [
            format!("user_pref(\"marionette.port\", {port});"),
            "user_pref(\"datareporting.policy.dataSubmissionEnabled\", false);".into(),
            "user_pref(\"app.update.enabled\", false);".into(),
            "user_pref(\"browser.shell.checkDefaultBrowser\", false);".into(),
            "user_pref(\"network.captive-portal-service.enabled\", false);".into(),
            "user_pref(\"network.connectivity-service.enabled\", false);".into(),
        ];
        std::fs::write(profile.path().join("user.js"), settings.join("\n")).expect("written");
        let mut command = Command::new(file);
        command
            .args(["--headless", "--no-remote", "--remote-allow-system-access", "--marionette", "--profile"])
            .arg(profile.path())
            .env("HOME", profile.path())
            .env("MOZ_CRASHREPORTER_DISABLE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().expect("Firefox starts");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        let mut browser = Firefox { child, _said: said, connection: None, last: 0, _profile: profile };
        let listens = |line: &String| line.contains("Listening on port");
        browser.said_until(listens);
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut connection = BufReader::new(stream);
        read_message(&mut connection);
        browser.connection = Some(connection);
        browser.command("WebDriver:NewSession", json!({}));
        browser.command("WebDriver:SetWindowRect", json!({"width": 1360, "height": 900}));
        browser
    }

    fn said_until(&mut self, found: impl Fn(&String) -> bool) {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let read = self._said.read_line(&mut line).expect("text");
            assert!(read > 0, "Firefox ended: {all}");
            if found(&line) {
                return;
            }
            all += &line;
        }
    }

    pub fn command(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let message = json!([0, self.last, method, params]).to_string();
        let connection = self.connection.as_mut().expect("connected");
        write!(connection.get_mut(), "{}:{message}", message.len()).expect("the browser listens");
        let mut answer = read_message(connection);
        assert_eq!(answer[1], self.last, "{answer}");
        assert!(answer[2].is_null(), "{method}: {}", answer[2]);
        answer[3].take()
    }

    /// Opens a file from disk, and waits until it is loaded.
    pub fn open(&mut self, file: &Path) {
        self.command("WebDriver:Navigate", json!({"url": format!("file://{}", file.display())}));
    }

    /// The value of an expression.
    pub fn run(&mut self, expression: &str) -> Value {
        let script = json!({"script": format!("return ({expression});"), "args": []});
        self.command("WebDriver:ExecuteScript", script)["value"].take()
    }

    pub fn text(&mut self, selector: &str) -> String {
        let value = self.run(&format!("document.querySelector({}).textContent", json!(selector)));
        value.as_str().unwrap_or_else(|| panic!("{selector} has no text")).to_owned()
    }

    /// Waits until an expression is true, as often as a frame is drawn.
    pub fn until(&mut self, expression: &str) {
        let script = format!(
            "const done = arguments[0]; const look = () => ({expression}) ? done(true) : requestAnimationFrame(look); look();"
        );
        self.command(
            "WebDriver:ExecuteAsyncScript",
            json!({"script": script, "args": [], "scriptTimeout": 60_000}),
        );
    }

    fn element(&mut self, selector: &str) -> Value {
        let mut found =
            self.command("WebDriver:FindElement", json!({"using": "css selector", "value": selector}));
        found["value"][ELEMENT].take()
    }

    /// A click of the mouse in the middle of what a selector finds.
    pub fn click(&mut self, selector: &str) {
        let place = self.run(&format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{block: 'center', behavior: 'instant'}}); \
             const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; }})()",
            json!(selector)
        ));
        let whole = |at: &Value| at.as_f64().expect("a place") as i64;
        let actions = json!([
            {"type": "pointerMove", "x": whole(&place[0]), "y": whole(&place[1])},
            {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0},
        ]);
        let mouse = json!({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions});
        self.command("WebDriver:PerformActions", json!({"actions": [mouse]}));
    }

    pub fn keys(&mut self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.command("WebDriver:ElementSendKeys", json!({"id": element, "text": text}));
    }

    /// Errors and warnings of a page, from the browser's own console.
    pub fn complaints(&mut self, file: &Path) -> Vec<String> {
        self.command("Marionette:SetContext", json!({"value": "chrome"}));
        let script = format!(
            "return Services.console.getMessageArray().filter((m) => m instanceof Ci.nsIScriptError && \
             m.sourceName.includes({})).map((m) => `${{m.category}}: ${{m.errorMessage}} at ${{m.lineNumber}}`);",
            json!(file.file_name().expect("a name").to_string_lossy())
        );
        let mut found = self.command("WebDriver:ExecuteScript", json!({"script": script, "args": []}));
        self.command("Marionette:SetContext", json!({"value": "content"}));
        serde_json::from_value(found["value"].take()).expect("a list of texts")
    }
}

fn read_message(connection: &mut BufReader<TcpStream>) -> Value {
    let mut length = Vec::new();
    connection.read_until(b':', &mut length).expect("the browser answers");
    let digits = std::str::from_utf8(&length).expect("digits").trim_end_matches(':');
    let mut body = vec![0; digits.parse().expect("a length")];
    connection.read_exact(&mut body).expect("the whole message");
    serde_json::from_slice(&body).expect("JSON from the browser")
}

impl Drop for Firefox {
    fn drop(&mut self) {
        let group = self.child.id() as i32;
        // SAFETY: a signal to the process group that the browser was started as the leader of; it is not
        // waited for yet, so that the number is still its own.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        let _ = self.child.wait();
    }
}
