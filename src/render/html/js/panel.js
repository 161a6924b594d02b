// The life of one region.

const panel = { from: null };

on("region", (i, from) => {
  const box = $("panel");
  if (i < 0 || i >= state.process.table.n) return;
  if (from && !box.contains(from)) panel.from = from;
  const first = box.hidden;
  box.replaceChildren(...regionDetails(state.process, i));
  besidePage(true, from);
  box.scrollTop = 0;
  if (from || first) $("panel-title").focus({ preventScroll: true });
  say(`${regionLabel(state.process.table, i)}, ${size(state.process.table.virt[i])}`);
});
on("process", closePanel);

/** Shows or hides the panel; what was clicked stays where it is, although the page gets another width. */
function besidePage(shown, clicked) {
  const anchor = clicked && !$("panel").contains(clicked) ? clicked : null;
  const before = anchor && anchor.getBoundingClientRect().top;
  $("panel").hidden = !shown;
  document.body.classList.toggle("with-panel", shown);
  if (anchor) window.scrollBy({ top: anchor.getBoundingClientRect().top - before, behavior: "instant" });
}

function closePanel() {
  const box = $("panel");
  if (box.hidden) return;
  besidePage(false, panel.from && panel.from.isConnected ? panel.from : null);
  if (panel.from && panel.from.isConnected) panel.from.focus({ preventScroll: true });
  panel.from = null;
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("panel").hidden) {
    event.preventDefault();
    closePanel();
  }
});

const EVIDENCE = {
  kernel: "the kernel itself says so", name: "its name says so", stack: "the call stack that mapped it",
  header: "a structure read from the process's memory", thread: "a thread's stack pointer lies in it",
  shape: "only its size, alignment and neighbours",
};

function regionDetails(p, i) {
  const t = p.table;
  const id = text(t.category[i]);
  const path = text(t.path[i]);
  const near = (to, words) => h("button", { type: "button", title: words, "aria-label": words, disabled: to < 0 || to >= t.n, onclick: () => showRegion(to, $("panel")) }, to < i ? "‹" : "›");
  const pair = (name, value, note) => (value === "" || value === null ? null : [h("dt", {}, name), h("dd", {}, value, note ? h("span", {}, note) : null)]);
  const unknown = residencyUnknown(p);
  return [
    h("div", { class: "panel-head", style: { "--c": color(id) } },
      h("div", { class: "panel-buttons" }, near(i - 1, "Region before"), near(i + 1, "Region after"),
        h("button", { type: "button", title: "Zoom the map to it", onclick: () => { mapShow(i); $("map").scrollIntoView(); } }, "In the map"),
        h("button", { type: "button", class: "close", "aria-label": "Close", title: "Close (Esc)", onclick: closePanel }, "×")),
      h("h2", { id: "panel-title", tabindex: "-1" }, swatch(id), categoryName(id)),
      h("p", { class: "mono address" }, `${hex(t.start[i])}-${hex(t.end[i])}`)),
    h("div", { class: "fillbar", style: { "--c": color(id), "--full": `${(100 * t.rss[i]) / (t.virt[i] || 1)}%` }, "aria-hidden": "true" }),
    h("dl", { class: "pairs" },
      pair("VIRT", size(t.virt[i]), `${thousands(t.virt[i])} bytes`),
      pair("RSS", unknown ? "not known" : size(t.rss[i]), unknown ? "" : percent(t.rss[i], t.virt[i])),
      t.swap[i] ? pair("swap", size(t.swap[i])) : null,
      pair("unused", unknown ? "not known" : size(t.unused[i])),
      pair("protection", h("span", { class: "mono" }, text(t.prot[i])), isReserved(t, i) ? "reserved: not accessible" : ""),
      pair("part", text(t.part[i])),
      path ? pair(path.startsWith("/") ? "file" : "name", h("span", { class: "mono wrap" }, path)) : null,
      t.thread[i] >= 0 ? pair("of thread", `${t.thread[i]}${threadName(p, t.thread[i])}`) : null,
      pair("known by", text(t.evidence[i]), EVIDENCE[text(t.evidence[i])] || ""),
      text(t.doubt[i]) ? pair("doubt", text(t.doubt[i]), "events were lost: its origin may be wrong") : null),
    ...originOf(p, i), ...findingOf(p, i), ...partsOf(p, i)];
}

function threadName(p, tid) {
  const named = p.findings.flatMap((f) => f.threads).find((each) => each.tid === tid) || p.threads && p.threads.find((each) => each.tid === tid);
  return named && named.comm ? ` “${named.comm}”` : "";
}

function originOf(p, i) {
  const t = p.table;
  const head = h("h3", {}, "Requested by");
  if (t.op[i] < 0) return [head, h("p", { class: "hint" }, `${withoutStack(t, i)[0].toUpperCase()}${withoutStack(t, i).slice(1)}.`)];
  const when = p.zero_ns ? ` at ${moment(t.time[i])}` : "";
  const parent = t.inherited_from[i] >= 0 ? h("p", { class: "hint" }, `Made by process ${t.inherited_from[i]} and inherited by fork.`) : null;
  return [head,
    h("p", { class: "origin" }, h("code", {}, text(t.op[i])), ` by thread ${t.tid[i]} “${text(t.comm[i])}”${when}, event ${thousands(t.event[i])}`),
    parent,
    t.stack[i] >= 0 ? stackList(t.stack[i]) : h("p", { class: "hint" }, "Its stack was lost or never taken."),
    h("p", { class: "hint" }, "All calls that touched it: ", h("code", { class: "select" }, `vmaudit explain REC ${hex(t.start[i])}`))].filter(Boolean);
}

/** The finding that a region is part of. */
function findingOf(p, i) {
  const at = p.findings.findIndex((f) => {
    f.places = f.places || placesOf(f);
    const after = firstAfter(f.places.start, p.table.start[i]);
    return after > 0 && p.table.start[i] < f.places.end[after - 1];
  });
  if (at < 0) return [];
  const f = p.findings[at];
  const open = () => {
    const more = document.querySelector("#findings > .wide");
    if (!$(`finding-${at + 1}`) && more) more.click();
    $(`finding-${at + 1}`).scrollIntoView();
  };
  return [h("h3", {}, "Why"),
    h("p", {}, h("button", { type: "button", class: "link", onclick: open }, `Finding ${at + 1}: ${f.title}`), ` · ${size(f.unused)} unused`),
    f.story ? h("p", { class: "story mono" }, f.story + (f.regions > 1 ? ` (the largest of ${thousands(f.regions)} such)` : "")) : null,
    f.why ? h("p", { class: "why" }, f.why) : null, ...f.fix.map(fixBox), ...(f.no_help ?? []).map(noHelpBox)].filter(Boolean);
}

/** Parts of one thing shown at most. */
const PARTS = 40;

function partsOf(p, i) {
  const t = p.table;
  const parts = [];
  for (let each = 0; each < t.n && parts.length <= PARTS; each++) if (t.instance[each] === t.instance[i]) parts.push(each);
  if (parts.length < 2) return [];
  const row = (each) => h("li", { "aria-current": each === i ? "true" : null },
    h("button", { type: "button", class: "link", disabled: each === i, onclick: () => showRegion(each, $("panel")) },
      h("span", { class: "mono" }, hex(t.start[each])), h("span", { class: "amount" }, size(t.virt[each])), h("span", {}, text(t.part[each]) || text(t.prot[each]))));
  return [h("h3", {}, "Its parts"), h("ul", { class: "parts" }, parts.slice(0, PARTS).map(row)),
    parts.length > PARTS ? h("p", { class: "hint" }, "… and more") : null].filter(Boolean);
}
