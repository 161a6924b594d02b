//! Tracepoint ids that were found by trying, kept for the next run: they hold until the machine boots,
//! and letting go of the hundreds of tracepoints tried takes the kernel seconds. A wrong file does
//! no harm: each sample says which call it is of, and others are dropped.

use crate::sys::untrusted_open;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Longer ones are not ours.
const MAX_BYTES: u64 = 64 << 10;

/// What was kept since the machine booted; None where nothing was.
pub fn read() -> Option<String> {
    let boot = boot_id()?;
    places().iter().find_map(|place| {
        let text = String::from_utf8(untrusted_open::read(place, MAX_BYTES).ok()?).ok()?;
        let (first, rest) = text.split_once('\n')?;
        (first == boot).then(|| rest.to_owned())
    })
}

/// Where nothing can be kept it is found again the next time.
pub fn write(text: &str) {
    let Some(boot) = boot_id() else { return };
    for place in places() {
        let partial = place.with_extension(format!("{}", std::process::id()));
        let file = File::options().write(true).create_new(true).mode(0o600).open(&partial);
        let Ok(mut file) = file else { continue };
        let written = write!(file, "{boot}\n{text}").and_then(|()| fs::rename(&partial, &place));
        if written.is_ok() {
            return;
        }
        let _ = fs::remove_file(&partial);
    }
}

fn boot_id() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

/// Folders of the user alone that exist already.
fn places() -> Vec<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    let found = [folder("XDG_RUNTIME_DIR"), cache];
    found.into_iter().flatten().map(|folder| folder.join("vmaudit-tracepoints")).collect()
}
