// All stacks as a table; a click opens the stack below its row.

sites.by = "bytes";
const signedSize = (bytes) => signed(bytes, size);
const COLUMNS = [
  ["bytes", "outstanding", size], ["blocks", "blocks", thousands], ["peak_bytes", "at the peak", size],
  ["calls", "calls", thousands], ["allocated", "allocated", size], ["temporary", "temporary", thousands], ["growth", "growth", signedSize],
];

/** Those of which something is known. */
const columnsOf = (p) => COLUMNS.filter(([name]) => (name === "growth" ? p.growth_ns !== null : isKnown(p, name)));

on("process", () => {
  Object.assign(sites, { shown: MANY, typed: "" });
  placeSites(drawSites);
});

/** What is searched in: all names of a stack. */
function wordsOf(t, i) {
  const frames = t.stack[i] >= 0 ? namesOf(t.stack[i]) : [text(t.why[i])];
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
  const total = (name) => found.reduce((all, i) => all + t[name][i], 0);
  const whose = sites.typed.trim() ? ` with “${sites.typed.trim()}”` : "";
  $("sites-line").replaceChildren(`${count(found.length, "stack")}${whose}, ${size(Math.max(0, total("bytes")))} outstanding${about ? ", estimated" : ""}`);
  const all = (name) => (name === "growth" ? total(name) : found.reduce((sum, i) => sum + Math.max(0, t[name][i]), 0));
  const foot = [columns.map(([name, , shown]) => h("td", {}, shown(all(name)))), h("th", { scope: "row", class: "who" }, "total")];
  fillSites(found, [columns.map(sortedBy(drawSites)), (i) => siteRow(t, i, columns), foot], drawSites);
}

function siteRow(t, i, columns) {
  const cell = ([name, , shown]) => h("td", {}, name !== "growth" && t[name][i] < 0 ? "–" : shown(t[name][i]));
  const below = () => h("td", { class: "words", colspan: columns.length + 1 },
    t.stack[i] >= 0 ? stackList(t.stack[i]) : h("p", { class: "hint" }, text(t.why[i])));
  return openedBy(text(t.who[i]), below, (button) => h("tr", {}, columns.map(cell), h("td", { class: "words" }, swatch(text(t.module[i])), button,
    t.leak[i] ? h("span", { class: "doubt" }, " grows") : null)));
}
