//! Puts the pages together when vmaudit is built (build.rs): all of a page is constant but its title and its data,
//! the hashes in its content security policy included.
//!
//! A template has markers, `@@NAME@@`: POLICY, STYLE, `SCRIPT` with the names of its files in the order of what they need
//! of each other, TITLE and DATA. The last two are left for [`super::Template`].

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The page of a template, with `@@TITLE@@` and `@@DATA@@` still in it. `text_of` is the text of a file of this folder.
pub fn page(template: &str, text_of: impl Fn(&str) -> String) -> Result<String, String> {
    let template = text_of(template);
    let style = text_of("report.css");
    let names = template.split("@@").skip(1).step_by(2).find_map(|marker| marker.strip_prefix("SCRIPT "));
    let script = scope(names.unwrap_or_default(), &text_of);
    // Nothing from anywhere; of scripts and styles, these two.
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        source(&script),
        source(&style)
    );
    let mut page = String::new();
    for (at, part) in template.split("@@").enumerate() {
        match (at % 2, part.split(char::is_whitespace).next()) {
            (0, _) => page.push_str(part),
            (_, Some("POLICY")) => page.push_str(&policy),
            (_, Some("STYLE")) => page.push_str(&style),
            (_, Some("SCRIPT")) => page.push_str(&script),
            (_, Some("TITLE" | "DATA")) => page.push_str(&format!("@@{part}@@")),
            _ => return Err(format!("a template has @@{part}@@")),
        }
    }
    Ok(page)
}

/// The files as one scope: nothing in them is global.
fn scope(names: &str, text_of: impl Fn(&str) -> String) -> String {
    let files: String = names.split_whitespace().map(|name| text_of(&format!("js/{name}"))).collect();
    format!("(() => {{\n\"use strict\";\n{files}}})();\n")
}

/// `sha256-BASE64`, as a source of a policy.
fn source(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}
