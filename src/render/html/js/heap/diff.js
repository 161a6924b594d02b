// Two heaps (src/render/html/heap_diff.rs): totals of both, and what changed, stack by stack.

/** Rows shown at first, and with each "more". */
const MANY = 40;
const shown = { by: "outstanding", up: false, count: MANY, typed: "" };
const COLUMNS = [["outstanding", "outstanding", size], ["blocks", "blocks", thousands], ["peak", "at the peak", size], ["allocated", "allocated", size], ["allocations", "calls", thousands]]
  .filter(([name]) => report.totals[name]);
const KINDS = { new: "new", gone: "gone", grown: "grown", shrunk: "shrunk", changed: "other figures changed", equal: "equal" };

const signed = (n, write) => (n === 0 ? "0" : (n < 0 ? "−" : "+") + write(Math.abs(n)));

function sideFacts(name, side) {
  const who = side.compared > 1 ? count(side.compared, "process", "processes") : `${side.comm || "unnamed"} (${side.pid})`;
  return h("li", {}, `${name}: ${baseName(side.source)}, ${who}, ${side.kind} by ${side.backend}`);
}

function overview() {
  const error = report.totals.standard_error ? ` ± ${size(report.totals.standard_error)}` : "";
  const row = ([name, label, write], at) => {
    const { a, b, change } = report.totals[name];
    return h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, write(a)), h("td", {}, write(b)),
      h("td", {}, h("strong", {}, signed(change, write)), at === 0 ? error : ""));
  };
  $("overview").replaceChildren(
    h("div", { class: "head" }, h("h1", { id: "title" }, `${report.b.comm || report.a.comm || "unnamed process"}: change of the heap`),
      h("ul", { class: "facts" }, sideFacts("A", report.a), sideFacts("B", report.b)),
      report.b.cmdline.length ? h("p", { class: "command", title: report.b.exe }, report.b.cmdline.join(" ")) : null),
    h("div", { class: "card" }, report.equal ? h("p", { class: "line" }, "No figure differs.") : null,
      h("div", { class: "scroll" }, h("table", { class: "totals" },
        h("thead", {}, h("tr", {}, ["", "A", "B", "change"].map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", {}, COLUMNS.map(row)))),
      report.notes.length ? h("ul", { class: "notes" }, report.notes.map((text) => h("li", {}, text))) : null));
}

/** What is searched in: all names of a stack. */
function wordsOf(change) {
  const frames = change.stack === null ? [] : framesOf(change.stack).map(frame).map((f) => `${f.name} ${f.module} ${f.file}`);
  return `${change.who} ${change.function} ${KINDS[change.kind]} ${frames.join(" ")}`.toLowerCase();
}

function changesFound() {
  const typed = shown.typed.trim().toLowerCase();
  const by = (change) => change[shown.by].change;
  return report.changes.filter((change) => !typed || wordsOf(change).includes(typed))
    .sort((x, y) => (shown.up ? by(x) - by(y) : Math.abs(by(y)) - Math.abs(by(x))));
}

function drawChanges() {
  const found = changesFound();
  const head = ([name, label]) => h("th", { scope: "col", "aria-sort": shown.by === name ? (shown.up ? "ascending" : "descending") : null },
    h("button", { type: "button", class: "link", onclick: () => {
      shown.up = shown.by === name && !shown.up;
      shown.by = name;
      drawChanges();
    } }, label + (shown.by === name ? (shown.up ? " ↑" : " ↓") : "")));
  const rest = found.length - shown.count;
  const sum = (name) => found.reduce((all, change) => all + change[name].change, 0);
  const whose = shown.typed.trim() ? ` with “${shown.typed.trim()}”` : "";
  $("sites-line").replaceChildren(`${count(found.length, "stack")}${whose} changed, ${signed(sum("outstanding"), size)} outstanding`);
  $("sites-table").replaceChildren(
    h("table", { class: "sites" },
      h("thead", {}, h("tr", {}, COLUMNS.map(head), h("th", { scope: "col", class: "who" }, "who called the allocator"))),
      h("tbody", {}, found.slice(0, shown.count).map(changeRow)),
      h("tfoot", {}, h("tr", {}, COLUMNS.map(([name, , write]) => h("td", {}, name === "peak" ? "" : signed(sum(name), write))),
        h("th", { scope: "row", class: "who" }, "total of these")))),
    rest > 0 ? h("button", { type: "button", class: "wide", onclick: () => { shown.count += 5 * MANY; drawChanges(); } }, `Show more of ${count(rest, "other stack")}`) : "");
}

function changeRow(change) {
  const cell = ([name, , write]) => h("td", { title: `A ${write(change[name].a)}, B ${write(change[name].b)}` }, signed(change[name].change, write));
  const button = h("button", { type: "button", class: "link mono who", "aria-expanded": "false", onclick: () => toggle() }, change.who);
  const doubt = change.within_error ? h("span", { class: "doubt" }, " within the error") : null;
  const row = h("tr", {}, COLUMNS.map(cell), h("td", { class: "words" }, swatch(change.module), button, h("span", { class: "kind" }, ` ${KINDS[change.kind]}`), doubt));
  let opened = null;
  const toggle = () => {
    button.setAttribute("aria-expanded", String(!opened));
    if (opened) {
      opened.remove();
      opened = null;
      return;
    }
    const sides = COLUMNS.map(([name, label, write]) => `${label} ${write(change[name].a)} → ${write(change[name].b)}`).join(" · ");
    opened = h("tr", { class: "opened" }, h("td", { class: "words", colspan: COLUMNS.length + 1 }, h("p", { class: "hint" }, sides),
      change.stack === null ? null : stackList(change.stack)));
    row.after(opened);
  };
  return row;
}

overview();
$("sites").replaceChildren(
  h("div", { class: "title" }, h("h2", { id: "sites-title" }, "Stacks"),
    h("div", { class: "tools" }, h("input", {
      id: "sites-search", type: "search", placeholder: "Functions, files, modules", "aria-label": "Search the stacks", autocomplete: "off", spellcheck: "false",
      oninput: (event) => { Object.assign(shown, { typed: event.target.value, count: MANY }); drawChanges(); },
    }))),
  h("div", { class: "card" }, h("p", { id: "sites-line", class: "line" }), h("div", { id: "sites-table", class: "scroll" })));
drawChanges();
