//! The HTML report in a real browser: loads from disk without a complaint, and does what it should when
//! clicked, typed at and driven by keys.

use super::driver::sample::{HOSTILE, many_regions, two_processes};
use super::driver::{Browser, chromium};
use crate::support;
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use vmaudit::diff::{HeapSide, Pick, compare_heaps};
use vmaudit::heap::extents::{ExtentArena, ExtentHeap};
use vmaudit::heap::fragmentation::{Arena, Fragmentation, Holder, Pages, Trim};
use vmaudit::heap::report::model::{Amount, Function, Point, SizeClass, Totals};
use vmaudit::heap::report::{HeapProcess, HeapReport, HeapRow, HeapSite};
use vmaudit::render::{heap_diff_to_html, heap_to_html, to_html};
use vmaudit::report::Report;
use vmaudit::report::model::{Frame, Stack};

struct Page {
    browser: Browser,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

/// The report, opened; None with a SKIP line where there is no browser.
fn opened(test: &str, report: &Report) -> Option<Page> {
    let html = to_html(report).expect("a page");
    opened_page(test, &html)
}

fn opened_page(test: &str, html: &str) -> Option<Page> {
    let browser = chromium().inspect_err(|why| support::skip(test, why)).ok()?;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.html");
    fs::write(&file, html).expect("written");
    let mut browser = Browser::start(&browser, (1360, 900));
    browser.open(&file);
    Some(Page { browser, file, _folder: folder })
}

/// Rows of the table that are drawn.
const ROWS: &str = "document.querySelectorAll('#rows-body tr[role=row]').length";
const NODES: &str = "document.querySelectorAll('*').length";

#[test]
fn hostile_names_are_text() {
    let Some(mut page) = opened("hostile_names_are_text", &two_processes()) else { return };
    let b = &mut page.browser;
    assert_eq!(b.complaints(), [""; 0]);
    let shown = HOSTILE.replace('\u{202e}', "\\u{202e}");
    assert_eq!(b.text("h1"), shown);
    assert!(b.text("#finding-1 .why").contains(&shown));
    assert!(b.text(".container h2").contains(&shown));
    assert!(b.run("document.title").as_str().unwrap().starts_with(&shown));
    b.click("#rows-body tr[aria-rowindex='6']");
    assert!(b.text("#panel").contains(&shown), "path and function");
    assert!(b.truth("window.broken === undefined && document.images.length === 0"));
    assert!(b.truth("document.scripts.length === 2"));
}

#[test]
fn the_verdict_comes_first() {
    let Some(mut page) = opened("the_verdict_comes_first", &two_processes()) else { return };
    let b = &mut page.browser;
    assert!(b.text(".verdict .headline").contains("VIRT matters here"));
    assert!(b.text(".checks li[data-state=near]").contains("RLIMIT_AS"));
    assert_eq!(b.number("document.querySelectorAll('.checks li').length"), 3);
    assert_eq!(b.number("document.querySelectorAll('.checks .gauge').length"), 2, "two have a limit");
    let width = "(() => { const g = document.querySelector('.gauge'); return 100 * g.firstChild.clientWidth / g.clientWidth; })()";
    assert_eq!(b.number(width), 91, "percent of its limit");
    assert!(b.text(".verdict .causes").contains("90 % of the address space is not in memory"));
    assert_eq!(b.text(".verdict li .amount"), "63.9 MiB");
    b.click(".verdict li a");
    assert!(b.truth("location.hash === '#finding-1'"));
    assert_eq!(b.complaints(), [""; 0]);
}

#[test]
fn neither_network_nor_other_scripts() {
    let Some(mut page) = opened("neither_network_nor_other_scripts", &two_processes()) else { return };
    let b = &mut page.browser;
    let tried = "(() => { const s = document.createElement('script'); s.textContent = 'window.broken = 1'; \
                 document.body.append(s); return window.broken === undefined; })()";
    assert!(b.truth(tried), "an inline script that is not ours ran");
    assert!(b.truth("fetch('http://127.0.0.1:1/').then(() => false, () => true)"));
    let blocked = b.complaints();
    assert!(blocked.iter().any(|each| each.contains("script-src")), "{blocked:?}");
    assert!(
        blocked.iter().any(|each| each.contains("connect-src") || each.contains("default-src")),
        "{blocked:?}"
    );
}

#[test]
fn a_region_is_found_and_its_life_printed() {
    let Some(mut page) = opened("a_region_is_found_and_its_life_printed", &two_processes()) else { return };
    let b = &mut page.browser;
    assert_eq!(b.number(ROWS), 5);
    assert!(b.text("#rows-line").contains("5 regions · VIRT 101.0 MiB · RSS 10.1 MiB"));
    b.fill("#rows-search", "load_config reserved");
    b.until(&format!("{ROWS} === 1"));
    b.click("#rows-body tr[role=row]");
    let panel = b.text("#panel");
    for part in [
        "glibc malloc arenas",
        "0x7f0000021000-0x7f0004000000",
        "mmap",
        "at 0.600 s",
        "load_config",
        "program.c:57",
        "Finding 1",
        "MALLOC_ARENA_MAX=1",
        "arena used part",
        "vmaudit explain REC 0x7f0000021000",
    ] {
        assert!(panel.contains(part), "{part} is missing in {panel}");
    }
    assert!(b.truth("document.activeElement.id === 'panel-title'"));
    // its other part, then closed: the focus is where it was
    b.click("#panel .parts li:first-child button");
    assert!(b.text("#panel .address").starts_with("0x7f0000000000-"));
    b.key("Escape");
    assert!(b.truth("document.querySelector('#panel').hidden && document.activeElement.id === 'rows'"));
    b.fill("#rows-search", "0x7f1000001000");
    b.until("document.querySelector('#rows-body tr[role=row]').textContent.includes('36.0 MiB')");
    assert_eq!(b.number(ROWS), 1, "the region that holds the address");
    b.fill("#rows-search", "nowhere to be found");
    b.until(&format!("{ROWS} === 0"));
    assert_eq!(b.complaints(), [""; 0]);
}

#[test]
fn the_table_sorts_and_goes_by_keys() {
    let Some(mut page) = opened("the_table_sorts_and_goes_by_keys", &two_processes()) else { return };
    let b = &mut page.browser;
    b.click("[data-column=VIRT] button");
    assert_eq!(b.run("document.querySelector('[data-column=VIRT]').ariaSort"), "descending");
    assert!(b.text("#rows-body tr[role=row]").contains("63.9 MiB"));
    b.click("[data-column=VIRT] button");
    assert!(b.text("#rows-body tr[role=row]").contains("132 KiB"));
    b.run("document.querySelector('#rows').focus()");
    b.key("End");
    b.key("ArrowUp");
    b.key("Enter");
    assert!(b.text("#panel").contains("36.0 MiB"), "the last but one");
    b.key("Escape");
    b.run("(() => { const s = document.querySelector('#rows-category'); s.value = 'loader'; s.dispatchEvent(new Event('change')); })()");
    assert_eq!(b.number(ROWS), 2);
    assert_eq!(b.complaints(), [""; 0]);
}

#[test]
fn the_map_zooms_and_opens() {
    let Some(mut page) = opened("the_map_zooms_and_opens", &two_processes()) else { return };
    let b = &mut page.browser;
    let whole = b.text("#map-line");
    assert!(whole.contains("5 regions") && !whole.contains("zoom"), "{whole}");
    b.click_at("#map-strip", 0.4);
    assert!(b.text("#panel").contains("arena reserved part"), "what is under the pointer");
    b.key("Escape");
    assert!(b.truth("document.activeElement.id === 'map-strip'"));
    b.key("+");
    assert!(b.text("#map-line").contains("zoom 2.0×"));
    b.key("End");
    assert!(!b.text("#map-line").contains("0x550000000000"));
    b.key("0");
    assert_eq!(b.text("#map-line"), whole);
    b.key(",");
    assert!(
        b.text("#say").contains("arena used part"),
        "the one before what was clicked: {}",
        b.text("#say")
    );
    b.key("Enter");
    assert!(b.text("#panel").contains("0x7f0000000000-0x7f0000021000"));
    b.key("Escape");
    b.click_with("#map-strip", 0.4, 8);
    assert!(b.text("#map-line").contains("zoom"), "{}", b.text("#map-line"));
    assert!(b.truth("document.querySelector('#panel').hidden"), "Shift zooms, and opens nothing");
    b.key("0");
    b.key("z");
    assert!(b.text("#map-line").contains("zoom"), "into the region that was opened last");
    b.key("0");
    // to scale, the two ends are terabytes apart: nothing but gaps between
    b.click("#map [data-value=scale]");
    assert_eq!(b.run("document.querySelector('#map [data-value=scale]').ariaChecked"), "true");
    let ink = "(() => { const c = document.querySelector('#map-strip'); const o = new OffscreenCanvas(c.width, 40); \
               const g = o.getContext('2d', {willReadFrequently: true}); g.drawImage(c, 0, 0); \
               const d = g.getImageData(0, 0, c.width, 40).data; let n = 0; \
               for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n / (d.length / 4); })()";
    assert!(b.truth(&format!("{ink} < 0.1")), "almost empty");
    b.click("#map [data-value=log]");
    assert!(b.truth(&format!("{ink} > 0.5")), "drawn");
    assert_eq!(b.complaints(), [""; 0]);
}

#[test]
fn the_flame_graph_has_four_widths_and_two_directions() {
    let Some(mut page) = opened("the_flame_graph", &two_processes()) else { return };
    let b = &mut page.browser;
    let frame = |name: &str| format!("#flame-graph [aria-label^={}]", json!(name));
    let width = |name: &str| {
        format!("Math.round(document.querySelector({}).getBoundingClientRect().width)", json!(frame(name)))
    };
    let root =
        "Math.round(document.querySelector('#flame-graph [role=treeitem]').getBoundingClientRect().width)";
    let arena = width("load_config");
    assert!(b.text("#flame-line").contains("Unused 90.9 MiB"), "what is requested first");
    b.click("#flame [data-value=virt]");
    let [all, part] = [b.number(root), b.number(&arena)];
    assert!((part * 101 - all * 64).abs() < all, "64 of 101 MiB: {part} of {all}");
    b.click("#flame [data-value=rss]");
    assert!(b.number(&arena) * 50 < all, "96 KiB of 10 MiB");
    assert!(b.text("#flame-line").contains("RSS 10.1 MiB"));
    b.click("#flame [data-value=writable]");
    assert!(b.text("#flame-line").contains("Writable 36.1 MiB"));
    b.click("#flame [data-value=unused]");
    assert!(b.text("#flame-line").contains("Unused 90.9 MiB"));
    b.click("#flame [data-value=virt]");
    b.fill("#flame-search", "load_config");
    b.until("document.querySelector('#flame-matched') !== null");
    assert!(b.text("#flame-matched").contains("64.0 MiB, 63 %"));
    assert_eq!(b.number("document.querySelectorAll('.frame.found').length"), 1);
    b.fill("#flame-search", " ");
    b.click(&frame("load_config"));
    assert!(b.text("#flame-line").contains("load_config") && b.text("#flame-line").contains("63 % of all"));
    assert_eq!(b.number(&arena), all, "zoomed");
    b.key("ArrowDown");
    assert!(b.truth("document.activeElement.getAttribute('aria-label').startsWith('worker')"));
    b.key("ArrowUp");
    b.key("Escape");
    assert!(b.text("#flame-line").contains("main"), "one step out");
    b.click("#flame-all");
    let depth = |name: &str| format!("Number(document.querySelector({}).ariaLevel)", json!(frame(name)));
    assert!(b.number(&depth("main")) < b.number(&depth("load_config")));
    b.click("#flame-reversed");
    assert!(b.number(&depth("main")) > b.number(&depth("load_config")));
    assert_eq!(b.number(&depth("glibc malloc arenas")), 2);
    assert_eq!(b.complaints(), [""; 0]);
}

#[test]
fn the_timeline_shows_snapshots_calls_and_the_peak() {
    let Some(mut page) = opened("the_timeline", &two_processes()) else { return };
    let b = &mut page.browser;
    assert_eq!(b.number("document.querySelectorAll('#chart .area').length"), 2);
    assert_eq!(b.number("document.querySelectorAll('#chart .mark').length"), 2, "two calls");
    assert_eq!(b.text("#chart .peak"), "peak 110.0 MiB");
    b.run("document.querySelector('#chart').focus()");
    b.key("Home");
    assert!(b.text("#chart-line").starts_with("0.100 s · VIRT 20.0 MiB · RSS 1.0 MiB"));
    b.key("ArrowRight");
    assert!(b.text("#chart-line").contains("RSS not known"));
    b.click("#timeline [data-value=rss]");
    assert_eq!(b.number("document.querySelectorAll('#chart .area').length"), 1);
    assert_eq!(b.complaints(), [""; 0]);
}

#[test]
fn processes_are_chosen_and_colours_too() {
    let Some(mut page) = opened("processes_are_chosen", &two_processes()) else { return };
    let Page { browser: b, file, .. } = &mut page;
    assert!(b.truth("!document.querySelector('#timeline').hidden"));
    b.run("(() => { const s = document.querySelector('#process'); s.value = '1'; s.dispatchEvent(new Event('change')); })()");
    assert_eq!(b.text("h1"), "child");
    assert!(b.truth("document.querySelector('#timeline').hidden"));
    assert!(b.text("#rows-line").starts_with("1 region · VIRT 512 KiB"));
    b.click(".processes tbody tr:first-child button");
    assert!(b.text("h1").starts_with("</script>"));
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = b.run(ground);
    b.command(
        "Emulation.setEmulatedMedia",
        json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]}),
    );
    let dark = b.run(ground);
    assert_ne!(light, dark);
    b.click("#theme");
    assert_eq!(b.run(ground), light, "light, whatever the system says");
    assert!(b.run("document.querySelector('#theme').ariaLabel").as_str().unwrap().contains("light"));
    // the browser stores it when it has a moment
    let remembered = (0..20).any(|_| {
        b.open(file);
        b.run(ground) == light
    });
    assert!(remembered);
    b.click("#theme");
    assert_eq!(b.run(ground), dark);
    // a category stands out, in the map's legend and the overview
    b.click(".legend button");
    assert_eq!(b.run("document.querySelector('.legend button').ariaPressed"), "true");
    assert!(b.number("document.querySelectorAll('.dim').length") > 2);
    assert_eq!(b.complaints(), [""; 0]);
}

#[test]
fn what_can_be_used_has_a_name() {
    let Some(mut page) = opened("what_can_be_used_has_a_name", &two_processes()) else { return };
    let b = &mut page.browser;
    b.click("#rows-body tr[role=row]");
    let tree = b.command("Accessibility.getFullAXTree", json!({}));
    let nodes = tree["nodes"].as_array().expect("nodes");
    let named = [
        "button",
        "link",
        "radio",
        "switch",
        "combobox",
        "searchbox",
        "application",
        "grid",
        "tree",
        "treeitem",
        "complementary",
        "navigation",
        "columnheader",
        "radiogroup",
    ];
    let mut seen = 0;
    for node in nodes.iter().filter(|node| node["ignored"] == false) {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if named.contains(&role) {
            seen += 1;
            assert!(
                !node["name"]["value"].as_str().unwrap_or_default().trim().is_empty(),
                "{role} without a name: {node}"
            );
        }
    }
    assert!(seen > 40, "{seen}");
    assert_eq!(b.number("document.querySelectorAll('h1').length"), 1);
}

#[test]
fn many_regions_take_few_elements() {
    let report = many_regions();
    let html = to_html(&report).expect("a page");
    assert!(html.len() < 10 << 20, "{} bytes", html.len());
    let Some(mut page) = opened_page("many_regions_take_few_elements", &html) else { return };
    let b = &mut page.browser;
    assert!(b.text("#rows-line").starts_with("65,000 regions"));
    assert_eq!(b.run("document.querySelector('#rows').getAttribute('aria-rowcount')"), "65001");
    assert!(b.number(NODES) < 2000, "{}", b.number(NODES));
    b.run("document.querySelector('#rows').focus()");
    b.key("End");
    assert!(b.number(ROWS) < 60);
    assert!(b.text("#rows-body tr.active").contains("0x7e003f79c000"), "the last one");
    b.click("[data-column=VIRT] button");
    assert!(b.text("#rows-body tr[role=row]").contains("12 KiB"));
    b.fill("#rows-search", "reader jemalloc");
    b.until("document.querySelector('#rows-line').textContent.startsWith('6,500 of')");
    b.fill("#rows-search", "0x7e0010003000");
    b.until("document.querySelector('#rows-line').textContent.startsWith('0 of')");
    b.fill("#rows-search", "0x7e0010000010");
    b.until(&format!("{ROWS} === 1"));
    b.click("#rows-body tr[role=row]");
    assert!(b.text("#panel .address").starts_with("0x7e0010000000-"));
    b.key("Escape");
    for kind in ["scale", "log", "squeezed"] {
        b.click(&format!("#map [data-value={kind}]"));
        b.run("document.querySelector('#map-strip').focus()");
        (0..14).for_each(|_| b.key("+"));
        assert!(b.text("#map-line").contains("zoom 16,384×"), "{}", b.text("#map-line"));
    }
    assert!(b.number(NODES) < 2000, "{}", b.number(NODES));
    assert_eq!(b.complaints(), [""; 0]);
}

#[test]
fn without_a_process() {
    let Some(mut page) = opened("without_a_process", &Report::default()) else { return };
    let b = &mut page.browser;
    assert_eq!(b.text("h1"), "No process was observed");
    assert_eq!(b.complaints(), [""; 0]);
}

fn hostile_arenas() -> Fragmentation {
    let pages = Pages { resident: 3 << 20, used: 1 << 20, beside: 1 << 20, ..Pages::default() };
    let trim = Trim { inside: 1 << 20, top: 0 };
    let main =
        Arena { main: true, mapped: 4 << 20, pages: Some(pages), trim: Some(trim), ..Arena::default() };
    let other = Arena { address: 77, mapped: 8192, why: Some(HOSTILE.to_owned()), ..Arena::default() };
    let jemalloc =
        ExtentArena { number: 3, mapped: 9 << 20, dirty: 5 << 20, purge: 5 << 20, ..ExtentArena::default() };
    let holder = |row| Holder { row, kept: 2048, pages: 1, blocks: 1, used: 64 };
    Fragmentation {
        total: Arena { main: false, ..main.clone() },
        arenas: vec![main, other],
        extents: vec![ExtentHeap {
            profile: Some(HOSTILE.to_owned()),
            allocator: "jemalloc 5.3.0".to_owned(),
            arenas: vec![jemalloc],
            total: jemalloc,
            doubtful: 2,
        }],
        holders: vec![holder(Some(0)), holder(None)],
        ..Fragmentation::default()
    }
}

/// A heap whose names try to break out of the page.
fn hostile_heap() -> HeapReport {
    let frame = |name: &str| Frame {
        module: "program".to_owned(),
        offset: "0x1234".to_owned(),
        symbol: Some(name.to_owned()),
        ..Frame::default()
    };
    let stacks = [HOSTILE, "cache"].map(|name| Stack::new(vec![frame(name), frame("main")], "complete"));
    let site = |stack: u64, bytes: u64| HeapSite {
        stack: Some(stack),
        allocated_bytes: 3 * bytes,
        allocations: 30,
        freed_bytes: 2 * bytes,
        frees: 20,
        peak_bytes: Some(2 * bytes),
        peak_blocks: Some(20),
        temporary: Some(5 * stack),
        ..HeapSite::default()
    };
    let row = |stack: u64, bytes: u64| HeapRow {
        stack: Some(stack),
        amount: Amount { bytes, blocks: 10, ..Amount::default() },
        allocations: 30,
        ..HeapRow::default()
    };
    let process = HeapProcess {
        pid: 4123,
        comm: HOSTILE.to_owned(),
        exe: "/usr/bin/program".to_owned(),
        cmdline: vec![HOSTILE.to_owned()],
        rows: vec![row(0, 3000), row(1, 1000)],
        sites: vec![site(0, 3000), site(1, 1000)],
        sizes: vec![SizeClass { from: 112, to: 112, blocks: 20, bytes: 4000, rounding: 240 }],
        totals: Totals {
            outstanding_bytes: 4000,
            outstanding_blocks: 20,
            temporary: Some(5),
            ..Totals::default()
        },
        gaps: vec![HOSTILE.to_owned()],
        fragmentation: Some(hostile_arenas()),
        timeline: vec![
            Point { t_ns: 1, bytes: 10, blocks: 1 },
            Point { t_ns: 2_000_000_000, bytes: 4000, blocks: 20 },
        ],
        ..HeapProcess::default()
    };
    let malloc =
        Function { name: "malloc".to_owned(), module: "libc.so.6".to_owned(), allocator: "libc".to_owned() };
    HeapReport {
        processes: vec![process],
        stacks: stacks.to_vec(),
        functions: vec![malloc],
        ..HeapReport::default()
    }
}

#[test]
fn a_heap_has_a_page_of_its_own() {
    let html = heap_to_html(&hostile_heap()).expect("a page");
    let Some(mut page) = opened_page("a_heap_has_a_page_of_its_own", &html) else { return };
    let b = &mut page.browser;
    assert_eq!(b.complaints(), [""; 0]);
    let shown = HOSTILE.replace('\u{202e}', "\\u{202e}");
    assert_eq!(b.text("h1"), shown);
    assert!(b.text(".notes").contains(&shown));
    assert!(b.text(".figures").contains("3.9 KiB"));
    let rows = "document.querySelectorAll('.sites tbody tr').length";
    assert_eq!(b.number(rows), 2);
    b.click(".sites tbody tr:first-child button.who");
    assert_eq!(b.number(rows), 3);
    assert!(b.text(".sites .stack").contains(&shown));
    b.click(".sites tbody tr:first-child button.who");
    assert_eq!(b.number(rows), 2);
    b.fill("#sites-search", "cache");
    assert_eq!(b.number(rows), 1);
    // The flame graph of calls, and of temporary ones, of which the second stack has all.
    b.click("#flame [data-value=calls]");
    assert!(b.text("#flame-line").contains("60 calls"));
    b.click("#flame [data-value=temporary]");
    assert!(b.text("#flame-line").contains("5 calls"));
    b.click("#groups [data-value=size]");
    assert!(b.text("#groups-table").contains("112 bytes"));
    b.click("#groups [data-value=thread]");
    assert!(b.text("#groups-table").contains("main (program)"));
    assert!(b.truth("document.querySelector('#chart path') !== null"));
    // What of arenas and extents is in memory, and whose blocks keep it.
    let arenas = b.text(".arenas");
    for part in ["main", "#1", &shown, "3.0 MiB", "malloc_trim(0) frees", "1.0 MiB between blocks", "2 KiB"] {
        assert!(arenas.contains(part), "{part} in {arenas}");
    }
    assert_eq!(b.number("document.querySelectorAll('.holders tbody tr').length"), 2);
    assert!(b.text(".holders tbody tr:last-child").contains("what the filter leaves out"));
    let extents = b.text(".extents");
    for part in ["jemalloc 5.3.0", "arena 3", "purging frees", "5.0 MiB", "2 extents changed"] {
        assert!(extents.contains(part), "{part} in {extents}");
    }
    assert!(b.truth("window.broken === undefined && document.images.length === 0"));
    assert_eq!(b.complaints(), [""; 0]);
}

#[test]
fn two_heaps_have_a_page() {
    let after = hostile_heap();
    let mut before = after.clone();
    for process in &mut before.processes {
        process.rows.truncate(1);
        process.sites.truncate(1);
        process.totals = Totals { outstanding_bytes: 3000, outstanding_blocks: 10, ..Totals::default() };
        process.shown = Amount { bytes: 3000, blocks: 10, ..Amount::default() };
    }
    let mut after = after;
    after
        .processes
        .iter_mut()
        .for_each(|p| p.shown = Amount { bytes: 4000, blocks: 20, ..Amount::default() });
    [&mut before, &mut after].into_iter().for_each(|report| report.schema = 1);
    let side = |report| HeapSide::new(report, (HOSTILE, "report"), Pick::Main).expect("a heap");
    let html = heap_diff_to_html(&compare_heaps(&side(&before), &side(&after))).expect("a page");
    let Some(mut page) = opened_page("two_heaps_have_a_page", &html) else { return };
    let b = &mut page.browser;
    assert_eq!(b.complaints(), [""; 0]);
    let shown = HOSTILE.replace('\u{202e}', "\\u{202e}");
    assert!(b.text("h1").contains(&shown));
    assert!(b.text(".totals").contains("+1000 B"), "{}", b.text(".totals"));
    let rows = "document.querySelectorAll('.sites tbody tr').length";
    assert_eq!(b.number(rows), 1, "both stacks are at one place of the module");
    assert!(b.text(".sites tbody tr").contains("grown"), "{}", b.text(".sites tbody tr"));
    b.click(".sites tbody tr:first-child button.who");
    assert!(b.text(".sites .stack").contains("cache"));
    assert!(b.text(".sites .opened").contains("outstanding 2.9 KiB → 3.9 KiB"));
    b.fill("#sites-search", "nothing has this name");
    assert_eq!(b.number(rows), 0);
    assert!(b.truth("window.broken === undefined && document.images.length === 0"));
    assert_eq!(b.complaints(), [""; 0]);
}
