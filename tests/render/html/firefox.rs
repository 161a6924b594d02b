//! The HTML report in a real Firefox: what tests/render/html/browser.rs checks in Chromium in detail, in
//! short.

use super::driver::firefox::{Firefox, firefox};
use super::driver::sample::{many_regions, two_processes};
use crate::support;
use std::fs;
use vmaudit::render::to_html;

#[test]
fn the_report_works_in_firefox() {
    let test = "the_report_works_in_firefox";
    let Ok(program) = firefox().inspect_err(|why| support::skip(test, why)) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.html");
    fs::write(&file, to_html(&two_processes()).expect("a page")).expect("written");
    let mut b = Firefox::start(&program);
    b.open(&file);

    assert!(b.text(".verdict .headline").contains("VIRT matters here"));
    assert!(b.text("#rows-line").contains("5 regions · VIRT 101.0 MiB · RSS 10.1 MiB"));

    // search, a region's life, and back by the keyboard
    b.keys("#rows-search", "load_config reserved");
    b.until("document.querySelectorAll('#rows-body tr[role=row]').length === 1");
    b.click("#rows-body tr[role=row]");
    let panel = b.text("#panel");
    for part in ["0x7f0000021000-0x7f0004000000", "load_config", "program.c:57", "MALLOC_ARENA_MAX=1"] {
        assert!(panel.contains(part), "{part} is missing in {panel}");
    }
    b.keys("#panel-title", "\u{e00c}");
    b.until("document.querySelector('#panel').hidden");
    b.keys("#rows-search", "\u{e009}a\u{e000}\u{e017}");
    b.until("document.querySelectorAll('#rows-body tr[role=row]').length === 5");

    // sorting
    b.click("[data-column=VIRT] button");
    assert_eq!(b.run("document.querySelector('[data-column=VIRT]').getAttribute('aria-sort')"), "descending");
    assert!(b.text("#rows-body tr[role=row]").contains("63.9 MiB"));
    assert_eq!(b.complaints(&file), [""; 0]);

    // dark and light are the reader's choice, after the system's
    let mut pages: Vec<String> = Vec::new();
    for _ in 0..3 {
        b.click("#theme");
        pages.push(b.run("getComputedStyle(document.body).backgroundColor").to_string());
    }
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(pages.len(), 2, "{pages:?}");

    // as many regions as the kernel allows by default
    let many = folder.path().join("many.html");
    fs::write(&many, to_html(&many_regions()).expect("a page")).expect("written");
    b.open(&many);
    assert!(b.text("#rows-line").starts_with("65,000 regions"));
    b.keys("#rows", "\u{e010}");
    b.until("document.querySelector('#rows-body tr.active')?.textContent.includes('0x7e003f79c000')");
    let nodes = b.run("document.querySelectorAll('*').length");
    assert!(nodes.as_u64().is_some_and(|nodes| nodes < 2000), "{nodes} elements for 65,000 regions");
    assert_eq!(b.complaints(&many), [""; 0]);
}
