//! The one way to leave a test, or a part of one, out. Also of the tests next to the sources (src/lib.rs).

/// Says what this machine cannot do: scripts/test.sh counts these lines.
pub fn skip(test: &str, why: &str) {
    eprintln!("SKIP {test}: {why}");
}

/// As [`skip`], of the test that calls: its thread has its name.
pub fn skip_this(why: &str) {
    skip(std::thread::current().name().unwrap_or("a test"), why);
}
