// All stacks as a table; a click opens the stack below its row.

/** Rows shown at first, and with each "more". */
const MANY = 40;
const sites = { by: "bytes", up: false, shown: MANY, typed: "" };
const COLUMNS = [
  ["bytes", "outstanding", size], ["blocks", "blocks", thousands], ["peak_bytes", "at the peak", size],
  ["calls", "calls", thousands], ["allocated", "allocated", size], ["temporary", "temporary", thousands], ["growth", "growth", signedSize],
];

function signedSize(bytes) {
  return bytes === 0 ? "0" : (bytes < 0 ? "−" : "+") + size(Math.abs(bytes));
}

/** Those of which something is known. */
const columnsOf = (p) => COLUMNS.filter(([name]) => (name === "growth" ? p.growth_ns !== null : isKnown(p, name)));

on("process", (p) => {
  Object.assign(sites, { shown: MANY, typed: "" });
  $("sites").replaceChildren(
    h("div", { class: "title" }, h("h2", { id: "sites-title" }, "Stacks"),
      h("div", { class: "tools" }, h("input", {
        id: "sites-search", type: "search", placeholder: "Functions, files, modules", "aria-label": "Search the stacks", autocomplete: "off", spellcheck: "false",
        oninput: (event) => { Object.assign(sites, { typed: event.target.value, shown: MANY }); drawSites(); },
      }))),
    h("div", { class: "card" }, h("p", { id: "sites-line", class: "line" }), h("div", { id: "sites-table", class: "scroll" })));
  drawSites();
});

/** What is searched in: all names of a stack. */
function wordsOf(t, i) {
  const frames = t.stack[i] >= 0 ? framesOf(t.stack[i]).map(frame).map((f) => `${f.name} ${f.module} ${f.file}`) : [text(t.why[i])];
  return `${text(t.function[i])} ${frames.join(" ")}`.toLowerCase();
}

function sitesFound(t) {
  const typed = sites.typed.trim().toLowerCase();
  const found = [];
  for (let i = 0; i < t.n; i++) if (!typed || wordsOf(t, i).includes(typed)) found.push(i);
  const of = t[sites.by];
  return found.sort((a, b) => (sites.up ? of[a] - of[b] : of[b] - of[a]) || t.allocated[b] - t.allocated[a]);
}

function drawSites() {
  const p = state.process;
  const t = p.table;
  const columns = columnsOf(p);
  const found = sitesFound(t);
  const head = ([name, label]) => h("th", { scope: "col", "aria-sort": sites.by === name ? (sites.up ? "ascending" : "descending") : null },
    h("button", { type: "button", class: "link", onclick: () => {
      sites.up = sites.by === name && !sites.up;
      sites.by = name;
      drawSites();
    } }, label + (sites.by === name ? (sites.up ? " ↑" : " ↓") : "")));
  const total = (name) => found.reduce((all, i) => all + t[name][i], 0);
  const rest = found.length - sites.shown;
  const whose = sites.typed.trim() ? ` with “${sites.typed.trim()}”` : "";
  $("sites-line").replaceChildren(`${count(found.length, "stack")}${whose}, ${size(Math.max(0, total("bytes")))} outstanding${about ? ", estimated" : ""}`);
  $("sites-table").replaceChildren(
    h("table", { class: "sites" },
      h("thead", {}, h("tr", {}, columns.map(head), h("th", { scope: "col", class: "who" }, "who called the allocator"))),
      h("tbody", {}, found.slice(0, sites.shown).map((i) => siteRow(t, i, columns))),
      h("tfoot", {}, h("tr", {}, columns.map(([name, , shown]) => h("td", {}, shown(name === "growth" ? total(name) : found.reduce((all, i) => all + Math.max(0, t[name][i]), 0)))),
        h("th", { scope: "row", class: "who" }, "total")))),
    rest > 0 ? h("button", { type: "button", class: "wide", onclick: () => { sites.shown += 5 * MANY; drawSites(); } }, `Show more of ${count(rest, "other stack")}`) : "");
}

function siteRow(t, i, columns) {
  const cell = ([name, , shown]) => h("td", {}, name !== "growth" && t[name][i] < 0 ? "–" : shown(t[name][i]));
  const button = h("button", { type: "button", class: "link mono who", "aria-expanded": "false", onclick: () => toggle() }, text(t.who[i]));
  const row = h("tr", {}, columns.map(cell), h("td", { class: "words" }, swatch(text(t.module[i])), button,
    t.leak[i] ? h("span", { class: "doubt" }, " grows") : null));
  let opened = null;
  const toggle = () => {
    button.setAttribute("aria-expanded", String(!opened));
    if (opened) {
      opened.remove();
      opened = null;
      return;
    }
    opened = h("tr", { class: "opened" }, h("td", { class: "words", colspan: columns.length + 1 },
      t.stack[i] >= 0 ? stackList(t.stack[i]) : h("p", { class: "hint" }, text(t.why[i]))));
    row.after(opened);
  };
  return row;
}
