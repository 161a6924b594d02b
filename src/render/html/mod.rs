//! The report as one HTML file (docs/html.md): no network, no other file, opens from disk.
//!
//! The page is the template `report.html` with a style sheet, a script and the report as JSON inside.
//! The script is the files of `js/`, one subject each, joined when vmaudit is built. Names in a report
//! come from the audited process: [`embed`] keeps them inside the JSON, the script shows them as text
//! only, and the page's content security policy allows no script but ours, and no network.

mod columns;
mod compact;
mod embed;
pub(super) mod heap;

use crate::report::Report;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use embed::{escape_text, in_script};
use sha2::{Digest, Sha256};

const TEMPLATE: &str = include_str!("report.html");
const STYLE: &str = include_str!("report.css");

/// In the order of what they need of each other; one scope, nothing global.
const SCRIPT: &str = concat!(
    "(() => {\n\"use strict\";\n",
    include_str!("js/dom.js"),
    include_str!("js/units.js"),
    include_str!("js/data.js"),
    include_str!("js/colors.js"),
    include_str!("js/stacks.js"),
    include_str!("js/state.js"),
    include_str!("js/verdict.js"),
    include_str!("js/overview.js"),
    include_str!("js/touch.js"),
    include_str!("js/findings.js"),
    include_str!("js/layout.js"),
    include_str!("js/map.js"),
    include_str!("js/search.js"),
    include_str!("js/table.js"),
    include_str!("js/tree.js"),
    include_str!("js/flame.js"),
    include_str!("js/timeline.js"),
    include_str!("js/panel.js"),
    include_str!("js/scheme.js"),
    include_str!("js/main.js"),
    include_str!("js/nav.js"),
    "})();\n",
);

const PAGE: Template = Template { page: TEMPLATE, script: SCRIPT };

/// What a page is made of, but for its data.
struct Template {
    page: &'static str,
    script: &'static str,
}

/// The whole page; ends with a newline.
///
/// # Errors
/// None in practice: the model holds nothing that JSON cannot say.
pub fn to_html(report: &Report) -> Result<String, serde_json::Error> {
    let title = report
        .processes
        .first()
        .map_or_else(|| "vmaudit".to_owned(), |p| format!("{} ({}) · vmaudit", super::clean(&p.comm), p.pid));
    Ok(PAGE.filled(&title, &serde_json::to_string(&compact::page(report)?)?))
}

impl Template {
    fn filled(&self, title: &str, json: &str) -> String {
        let data = in_script(json);
        let fill = |marker: &str| -> String {
            match marker {
                "TITLE" => escape_text(title),
                "POLICY" => self.policy(),
                "STYLE" => STYLE.to_owned(),
                "DATA" => data.clone(),
                "SCRIPT" => self.script.to_owned(),
                _ => String::new(),
            }
        };
        // What is filled in is never searched for markers.
        let mut out = String::with_capacity(self.page.len() + STYLE.len() + self.script.len() + data.len());
        for (at, part) in self.page.split("@@").enumerate() {
            if at % 2 == 0 { out.push_str(part) } else { out.push_str(&fill(part)) }
        }
        out
    }

    /// Nothing from anywhere; of scripts and styles, these two.
    fn policy(&self) -> String {
        format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
            source(self.script),
            source(STYLE)
        )
    }
}

/// `sha256-BASE64`, as a source of a policy.
fn source(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Process, Region, Stack};

    fn page(comm: &str) -> String {
        let region = Region { path: Some(comm.to_owned()), ..Region::default() };
        let process = Process {
            comm: comm.to_owned(),
            exe: comm.to_owned(),
            cmdline: vec![comm.to_owned()],
            regions: vec![region],
            ..Process::default()
        };
        let report = Report { processes: vec![process], stacks: vec![Stack::default()], ..Report::default() };
        to_html(&report).unwrap()
    }

    #[test]
    fn hostile_names_stay_inside() {
        let plain = page("plain");
        let count = |page: &str, what: &str| page.matches(what).count();
        for name in ["</script><script>alert(1)</script>", "<!--<script>", "@@DATA@@", "&lt;\u{2028}", "\"}]"]
        {
            let page = page(name);
            for what in ["<script", "</script", "<!--", "-->", "</title"] {
                assert_eq!(count(&page, what), count(&plain, what), "{what} with {name:?}");
            }
            assert!(!page.contains('\u{2028}'));
            assert_eq!(page.matches("application/json").count(), 1, "{name:?}");
        }
    }

    #[test]
    fn the_policy_names_the_script_that_is_there() {
        let page = page("p");
        let script = page.rsplit_once("<script>").unwrap().1.split_once("</script>").unwrap().0;
        assert!(page.contains(&source(script)));
        let style = page.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
        assert!(page.contains(&source(style)));
        // a policy in force forbids what it does not name; these would be dead code, or worse
        for never in ["innerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://www", "fetch("] {
            let without_svg = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!without_svg.contains(never), "{never}");
        }
        assert!(page.ends_with("</html>\n") && !page.contains("@@"));
    }
}
