//! The report as one HTML file (docs/html.md): no network, no other file, opens from disk.
//!
//! The page is the template `report.html` with a style sheet, a script and the report as JSON inside.
//! The script is the files of `js/`, one subject each, joined when vmaudit is built (`assemble.rs`). Names in a report
//! come from the audited process: [`embed`] keeps them inside the JSON, the script shows them as text
//! only, and the page's content security policy allows no script but ours, and no network.

mod columns;
mod compact;
mod embed;
pub(super) mod heap;
pub(super) mod heap_diff;

use crate::report::Report;
use embed::{escape_text, in_script};

const PAGE: Template = Template(include_str!(concat!(env!("OUT_DIR"), "/report.html")));

/// A page with markers for what is not constant (`assemble.rs`).
struct Template(&'static str);

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
    /// What is filled in is never searched for markers.
    fn filled(&self, title: &str, json: &str) -> String {
        let (title, data) = (escape_text(title), in_script(json));
        let mut out = String::with_capacity(self.0.len() + title.len() + data.len());
        for (at, part) in self.0.split("@@").enumerate() {
            match part {
                "TITLE" if at % 2 == 1 => out.push_str(&title),
                "DATA" if at % 2 == 1 => out.push_str(&data),
                constant => out.push_str(constant),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Process, Region, Stack};
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use sha2::{Digest, Sha256};

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
        let source = |text| format!("sha256-{}", STANDARD.encode(Sha256::digest(text)));
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
