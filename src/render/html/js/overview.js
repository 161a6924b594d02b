// The top of the page: who, how much, and what it is.

/** `exited 0`, `killed by signal 9`, `running`. */
function endOf(p) {
  if (p.signal !== null) return `killed by signal ${p.signal}`;
  return p.exit_code !== null ? `exited ${p.exit_code}` : "running";
}

function stateOf(p) {
  if (p.source) return `from ${p.source}`;
  if (report.at_ns !== undefined) return `as it was at ${moment(report.at_ns)}`;
  if (p.wall_ns === null) return endOf(p);
  const ended = p.signal !== null || p.exit_code !== null;
  if (p.attached) return `${ended ? endOf(p) : "still running"}, watched for ${duration(p.wall_ns)}`;
  return endOf(p) + (ended ? " after " : ", seen for ") + duration(p.wall_ns);
}

function factsOf(p) {
  const traced = report.backend !== "snapshot";
  return [
    p.source ? null : `pid ${p.pid}` + (p.container_pid ? ` (${p.container_pid} inside)` : ""),
    stateOf(p),
    p.threads_alive ? `${count(p.threads_alive, "thread")}, ${thousands(p.threads_seen)} seen`
      : p.threads_seen ? count(p.threads_seen, "thread") : null,
    p.container ? `container ${p.container}` : null,
    `ASLR ${p.aslr ? "on" : "off"}`,
    traced ? `backend ${report.backend}` : "not traced",
    traced ? `${count(report.events.seen, "event")}, ${thousands(report.events.lost)} lost` : null,
  ].filter(Boolean);
}

on("process", (p) => {
  const section = $("overview");
  section.replaceChildren(
    h("div", { class: "head" },
      h("h1", { id: "title" }, p.comm || "unnamed process"),
      h("ul", { class: "facts" }, factsOf(p).map((fact) => h("li", {}, fact))),
      p.cmdline.length ? h("p", { class: "command", title: p.exe }, p.cmdline.join(" ")) : null),
    ...containerCards(),
    h("div", { class: "card hero" }, figures(p), wholeBar(p), verdict(p)),
    h("div", { class: "columns" }, categoryCard(p), h("div", { class: "side" }, ...checksCard(p), sideCard(p))),
    ...processCards(p));
});

function figures(p) {
  const t = p.totals;
  const unknown = residencyUnknown(p);
  const figure = (name, bytes, note, kind) => h("div", { class: `figure ${kind}` },
    h("dt", {}, name), h("dd", {}, h("strong", {}, bytes), h("span", {}, note)));
  return h("dl", { class: "figures" },
    figure("VIRT", size(t.virt), t.vm_peak > t.virt ? `peak ${size(t.vm_peak)}` : "address space", "virt"),
    figure("RSS", unknown ? "not known" : size(t.rss), unknown ? "not examined" : `${percent(t.rss, t.virt)} in memory`, "rss"),
    t.swap ? figure("swap", size(t.swap), percent(t.swap, t.virt), "swap") : null,
    figure("unused", unknown ? "not known" : size(t.unused), unusedNote(p), "unused"),
    figure("writable", size(t.writable), "could be touched", "writable"),
    figure("reserved", size(t.reserved), "PROT_NONE: not accessible", "reserved"));
}

function unusedNote(p) {
  const t = p.totals;
  if (residencyUnknown(p)) return "";
  if (t.residency_unknown) return `of ${size(t.residency_unknown)} of it that is not known`;
  return `${percent(t.unused, t.virt)} is not in memory`;
}

/** All of VIRT in one bar: a part a category, filled as far as it is resident. */
function wholeBar(p) {
  const all = p.totals.virt || 1;
  const parts = p.categories.filter((row) => row.virt / all > 0.0008).map((row) => h("span", {
    "data-category": row.id,
    style: { "flex-grow": String(row.virt), "--c": color(row.id), "--full": `${(100 * row.rss) / (row.virt || 1)}%` },
    onclick: () => showCategory(row.id),
    onpointermove: (event) => tip(event, [row.name, `VIRT ${size(row.virt)} · ${percent(row.virt, all)}`, `RSS ${size(row.rss)}`]),
    onpointerleave: (event) => tip(event, null),
  }));
  const label = p.categories.slice(0, 5).map((row) => `${row.name} ${percent(row.virt, all)}`).join(", ");
  return h("div", { class: "whole", role: "img", "aria-label": `VIRT by category: ${label}` }, parts);
}

function categoryCard(p) {
  const unknown = residencyUnknown(p);
  const known = (bytes) => (unknown ? "–" : size(bytes));
  const largest = Math.max(1, ...p.categories.map((row) => row.virt));
  const row = (each) => h("tr", { "data-category": each.id },
    h("th", { scope: "row" }, h("button", {
      type: "button", class: "link category", "aria-pressed": "false", title: "Make it stand out in map and flame graph",
      onclick: () => showCategory(each.id),
    }, swatch(each.id), each.name)),
    h("td", { class: "meter", "aria-hidden": "true" }, h("span", {
      style: { width: `${Math.max(0.6, (100 * each.virt) / largest)}%`, "--c": color(each.id), "--full": `${(100 * each.rss) / (each.virt || 1)}%` },
    })),
    [size(each.virt), size(each.writable), known(each.rss), known(each.unused), thousands(each.regions)].map((cell) => h("td", {}, cell)));
  const t = p.totals;
  const sum = p.categories.reduce((all, each) => all + each.regions, 0);
  return h("div", { class: "card categories" },
    h("h2", {}, "What it is"),
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["what", "", "VIRT", "writable", "RSS", "unused", "things"].map((name) => (name ? h("th", { scope: "col" }, name) : h("td"))))),
      h("tbody", {}, p.categories.map(row)),
      h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "total"), h("td", { class: "meter" }),
        [size(t.virt), size(t.writable), known(t.rss), known(t.unused), thousands(sum)].map((cell) => h("td", {}, cell)))))),
    h("p", { class: "hint" }, "Rows add up to the total, byte for byte; what nothing explains is a row of its own. An arena with its used and its reserved part is one thing."));
}

on("category", (id) => {
  for (const node of document.querySelectorAll("[data-category]")) {
    node.classList.toggle("dim", id !== "" && node.dataset.category !== id);
    const button = node.matches("[aria-pressed]") ? node : node.querySelector("[aria-pressed]");
    if (button) button.setAttribute("aria-pressed", String(id !== "" && node.dataset.category === id));
  }
});

/** How sure all this is. */
function sideCard(p) {
  const c = p.coverage;
  const rows = [["traced", c.traced, "mapped by a call that was seen"], ["kernel", c.kernel, "mapped by the kernel itself"],
    ["before", c.preexisting, "mapped before tracing began"], ["unknown", c.unknown, "not seen"]];
  const notes = notesOf(p);
  const r = p.resources;
  return h("div", { class: "card" },
    h("h2", {}, "How it is known"),
    h("dl", { class: "pairs" }, rows.filter(([, bytes]) => bytes > 0).map(([name, bytes, why]) =>
      [h("dt", { title: why }, name), h("dd", {}, size(bytes), h("span", {}, why))])),
    h("dl", { class: "pairs" },
      [h("dt", {}, "residency"), h("dd", {}, RESIDENCY[p.residency] || p.residency)],
      p.touch ? [h("dt", {}, "page faults"), h("dd", {}, thousands(p.touch.faults), h("span", {}, p.touch.exact ? "all recorded" : "sampled"))] : null,
      r ? [h("dt", {}, "processor"), h("dd", {}, duration(r.cpu_ns), h("span", {}, `${thousands(r.minor_faults)} minor, ${thousands(r.major_faults)} major faults`))] : null),
    notes.length ? h("ul", { class: "notes", "aria-label": "Notes" }, notes.map((note) => h("li", {}, note))) : null);
}

const RESIDENCY = {
  "pagemap-scan": "exact, page by page", "pagemap": "exact, page by page",
  "smaps-estimate": "estimated within each mapping", "none": "not known",
};

function notesOf(p) {
  const e = report.events;
  const c = p.coverage;
  return [
    report.backend === "snapshot" && "a snapshot: what is mapped is recognised by names, headers and shape; which call requested it, only run and attach can see",
    e.lost && `${thousands(e.lost)} ${report.backend === "notify" ? "calls did what could not be determined" : "events were lost because the buffer was full"}; regions whose origin became doubtful say so`,
    e.truncated_stacks && `${thousands(e.truncated_stacks)} stacks end early: not enough of the stack was copied (--stack-bytes)`,
    e.unwind_incomplete && `${thousands(e.unwind_incomplete)} stacks end early: no unwind information for a frame, or it was called on another stack`,
    p.snapshot_age_ns !== null && p.snapshot_age_ns !== undefined && `the last snapshot, ${duration(p.snapshot_age_ns)} before its end`,
    c.ledger_drift && `${size(c.ledger_drift)} where the record of calls and the kernel's maps disagree; the kernel's maps are right`,
    c.doubtful && `${size(c.doubtful)} have a doubtful origin`,
    p.left_out && `small compared with others, and ended: its ${thousands(p.left_out)} regions were not kept, their sums were`,
    ...p.gaps,
  ].filter(Boolean);
}

function containerCards() {
  return (report.containers || []).map((c) => {
    const m = c.memory || {};
    const pair = (name, bytes) => (bytes === null || bytes === undefined ? null : [h("dt", {}, name), h("dd", {}, typeof bytes === "number" ? size(bytes) : bytes)]);
    return h("div", { class: "card container" },
      h("h2", {}, `${c.engine ? c.engine + " container" : "cgroup"} ${c.name}`),
      h("p", { class: "hint mono" }, c.cgroup),
      h("dl", { class: "row" },
        pair("processes", thousands(c.processes) + (c.ended ? ` (+${thousands(c.ended)} ended)` : "")), pair("threads", thousands(c.threads)),
        pair("VIRT", c.virt), pair("RSS", c.rss), pair("PSS", c.pss), pair("charged", m.current),
        pair("limit", c.memory ? (m.max === null ? "none" : m.max) : null), pair("peak", m.peak), pair("anon", m.anon), pair("file", m.file),
        pair("shared", m.shmem), pair("kernel", m.kernel), pair("swap", m.swap)));
  });
}

/** All processes, where there are several. */
function processCards(current) {
  if (report.processes.length < 2) return [];
  const rows = [...report.processes].sort((a, b) => b.totals.unused - a.totals.unused);
  const row = (p) => h("tr", { "aria-current": p === current ? "true" : null },
    h("td", {}, p.pid),
    h("th", { scope: "row" }, h("button", { type: "button", class: "link", onclick: () => { showProcess(p); window.scrollTo(0, 0); } }, p.comm || "unnamed")),
    [size(p.totals.virt), residencyUnknown(p) ? "–" : size(p.totals.rss), residencyUnknown(p) ? "–" : size(p.totals.unused)].map((cell) => h("td", {}, cell)),
    h("td", { class: "words" }, `${p.categories.length ? p.categories[0].name : ""} · ${endOf(p)}`));
  return [h("div", { class: "card processes" }, h("h2", {}, `${thousands(rows.length)} processes`),
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["pid", "process", "VIRT", "RSS", "unused", "mostly"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map(row)))))];
}
