// Two heaps (src/render/html/heap_diff.rs): totals of both, and what changed, stack by stack.

sites.by = "outstanding";
const COLUMNS = [["outstanding", "outstanding", size], ["blocks", "blocks", thousands], ["peak", "at the peak", size], ["allocated", "allocated", size], ["allocations", "calls", thousands]]
  .filter(([name]) => report.totals[name]);
const KINDS = { new: "new", gone: "gone", grown: "grown", shrunk: "shrunk", changed: "other figures changed", equal: "equal" };

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
  const frames = change.stack === null ? [] : namesOf(change.stack);
  return `${change.who} ${change.function} ${KINDS[change.kind]} ${frames.join(" ")}`.toLowerCase();
}

function changesFound() {
  const typed = sites.typed.trim().toLowerCase();
  const by = (change) => change[sites.by].change;
  return report.changes.filter((change) => !typed || wordsOf(change).includes(typed))
    .sort((x, y) => (sites.up ? by(x) - by(y) : Math.abs(by(y)) - Math.abs(by(x))));
}

function drawChanges() {
  const found = changesFound();
  const sum = (name) => found.reduce((all, change) => all + change[name].change, 0);
  const whose = sites.typed.trim() ? ` with “${sites.typed.trim()}”` : "";
  $("sites-line").replaceChildren(`${count(found.length, "stack")}${whose} changed, ${signed(sum("outstanding"), size)} outstanding`);
  const foot = [COLUMNS.map(([name, , write]) => h("td", {}, name === "peak" ? "" : signed(sum(name), write))), h("th", { scope: "row", class: "who" }, "total of these")];
  fillSites(found, [COLUMNS.map(sortedBy(drawChanges)), changeRow, foot], drawChanges);
}

function changeRow(change) {
  const cell = ([name, , write]) => h("td", { title: `A ${write(change[name].a)}, B ${write(change[name].b)}` }, signed(change[name].change, write));
  const doubt = change.within_error ? h("span", { class: "doubt" }, " within the error") : null;
  const below = () => {
    const sides = COLUMNS.map(([name, label, write]) => `${label} ${write(change[name].a)} → ${write(change[name].b)}`).join(" · ");
    return h("td", { class: "words", colspan: COLUMNS.length + 1 }, h("p", { class: "hint" }, sides), change.stack === null ? null : stackList(change.stack));
  };
  return openedBy(change.who, below, (button) => h("tr", {}, COLUMNS.map(cell),
    h("td", { class: "words" }, swatch(change.module), button, h("span", { class: "kind" }, ` ${KINDS[change.kind]}`), doubt)));
}

overview();
placeSites(drawChanges);
