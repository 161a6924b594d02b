// All regions as a table. Only the rows on show are elements: 65,000 regions stay fluid.

const ROW = 30;
const rows = { shown: null, sort: "address", down: false, typed: "", category: "", stacks: null, what: "", top: 0, active: 0 };

/** Columns: name, alignment, what to sort by, what a cell shows. */
const COLUMNS = [
  ["address", "", (t, i) => t.start[i], (t, i) => h("span", { class: "mono" }, hex(t.start[i]))],
  ["VIRT", "n", (t, i) => t.virt[i], (t, i) => size(t.virt[i])],
  ["RSS", "n", (t, i) => t.rss[i], (t, i) => (residencyUnknown(state.process) ? "–" : size(t.rss[i]))],
  ["unused", "n", (t, i) => t.unused[i], (t, i) => (residencyUnknown(state.process) ? "–" : size(t.unused[i]))],
  ["prot", "", (t, i) => text(t.prot[i]), (t, i) => h("span", { class: "mono" }, text(t.prot[i]))],
  ["what", "", (t, i) => categoryName(text(t.category[i])) + text(t.part[i]), (t, i) => [swatch(text(t.category[i])),
    categoryName(text(t.category[i])), text(t.part[i]) ? h("span", { class: "part" }, text(t.part[i])) : null]],
  ["file or name", "", (t, i) => text(t.path[i]), (t, i) => h("span", { title: text(t.path[i]) || null }, baseName(text(t.path[i])))],
  ["thread", "n", (t, i) => (t.thread[i] >= 0 ? t.thread[i] : t.tid[i]), (t, i) => (t.thread[i] >= 0 ? t.thread[i] : t.tid[i] >= 0 ? t.tid[i] : "")],
  ["requested by", "", (t, i) => callerOf(t.stack[i]), (t, i) => callerOf(t.stack[i])],
];

on("process", (p) => {
  Object.assign(rows, { typed: "", category: "", stacks: null, what: "", top: 0, active: 0 });
  const head = COLUMNS.map(([name, kind]) => h("th", { scope: "col", role: "columnheader", class: kind, "data-column": name },
    h("button", { type: "button", onclick: () => sortBy(name) }, name)));
  const box = h("div", { id: "rows", class: "rows", tabindex: "0", role: "grid", "aria-labelledby": "regions-title", "aria-describedby": "rows-help",
    "aria-colcount": COLUMNS.length, onscroll: drawRows, onkeydown: rowKey },
  h("table", { role: "presentation" }, h("thead", { role: "rowgroup" }, h("tr", { role: "row", "aria-rowindex": 1 }, head)), h("tbody", { id: "rows-body", role: "rowgroup" })));
  $("regions").replaceChildren(
    h("div", { class: "title" }, h("h2", { id: "regions-title" }, "Regions"),
      h("div", { class: "tools" },
        h("input", { id: "rows-search", type: "search", placeholder: "Search: name, file, function, thread, 0x…", "aria-label": "Search regions",
          autocomplete: "off", spellcheck: "false", oninput: (event) => { rows.typed = event.target.value; laterFilter(); } }),
        h("select", { id: "rows-category", "aria-label": "Category", onchange: (event) => { rows.category = event.target.value; filterRows(); } },
          h("option", { value: "" }, "all categories"), p.categories.map((row) => h("option", { value: row.id }, row.name))))),
    h("div", { class: "card flush" }, h("p", { id: "rows-line", class: "line", role: "status" }), box,
      h("p", { id: "rows-help", class: "hint" }, "↑ ↓ move, Enter opens, Home and End jump")));
  filterRows();
});

let filterTimer = 0;
function laterFilter() {
  clearTimeout(filterTimer);
  filterTimer = setTimeout(filterRows, 120);
}

/** From the flame graph: the regions of some stacks. */
on("regionsOf", (stacks, what) => {
  Object.assign(rows, { stacks, what, typed: "", category: "" });
  $("rows-search").value = "";
  $("rows-category").value = "";
  filterRows();
  $("regions").scrollIntoView();
  $("rows").focus({ preventScroll: true });
});

function filterRows() {
  clearTimeout(filterTimer);
  const { table } = state.process;
  const found = matching(state.process, rows.typed, rows.category, rows.stacks);
  rows.shown = found ? Int32Array.from(found) : Int32Array.from({ length: table.n }, (_, i) => i);
  let [virt, rss] = [0, 0];
  for (const i of rows.shown) { virt += table.virt[i]; rss += table.rss[i]; }
  const of = rows.shown.length < table.n ? `${thousands(rows.shown.length)} of ${count(table.n, "region")}` : count(table.n, "region");
  $("rows-line").replaceChildren(`${of} · VIRT ${size(virt)}` + (residencyUnknown(state.process) ? "" : ` · RSS ${size(rss)}`),
    ...(rows.stacks ? [` · mapped through ${rows.what} `, h("button", { type: "button", class: "link", onclick: () => { rows.stacks = null; filterRows(); } }, "show all")] : []));
  sortRows();
}

function sortBy(name) {
  const numeric = COLUMNS.find(([each]) => each === name)[1] === "n";
  rows.down = rows.sort === name ? !rows.down : numeric;
  rows.sort = name;
  sortRows();
  say(`Sorted by ${name}, ${rows.down ? "largest first" : "smallest first"}`);
}

function sortRows() {
  const { table } = state.process;
  const [, , key] = COLUMNS.find(([name]) => name === rows.sort);
  const keys = new Map();
  for (const i of rows.shown) keys.set(i, key(table, i));
  const sign = rows.down ? -1 : 1;
  rows.shown.sort((a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    return (x < y ? -sign : x > y ? sign : 0) || a - b;
  });
  for (const th of $("regions").querySelectorAll("[data-column]")) {
    const is = th.dataset.column === rows.sort;
    th.setAttribute("aria-sort", is ? (rows.down ? "descending" : "ascending") : "none");
  }
  rows.active = Math.max(0, rows.shown.indexOf(state.region));
  $("rows").setAttribute("aria-rowcount", rows.shown.length + 1);
  $("rows").scrollTop = 0;
  drawRows();
}

function drawRows() {
  const [box, body] = [$("rows"), $("rows-body")];
  const { table } = state.process;
  const total = rows.shown.length;
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 6);
  const last = Math.min(total, first + Math.ceil(box.clientHeight / ROW) + 14);
  const spacer = (height) => h("tr", { "aria-hidden": "true", class: "spacer", style: { height: `${height}px` } });
  const drawn = [];
  for (let at = first; at < last; at++) {
    const i = rows.shown[at];
    drawn.push(h("tr", {
      role: "row", id: `row-${at}`, "aria-rowindex": at + 2, "aria-selected": String(i === state.region),
      class: at === rows.active ? "active" : "", onclick: () => { rows.active = at; showRegion(i, box); },
    }, COLUMNS.map(([, kind, , cell]) => h("td", { role: "gridcell", class: kind }, cell(table, i)))));
  }
  body.replaceChildren(spacer(first * ROW), ...drawn, spacer((total - last) * ROW));
  if (rows.active >= first && rows.active < last) box.setAttribute("aria-activedescendant", `row-${rows.active}`);
  else box.removeAttribute("aria-activedescendant");
}
on("region", () => { if (rows.shown) drawRows(); });

function rowKey(event) {
  if (event.target !== $("rows")) return;
  const page = Math.max(1, Math.floor($("rows").clientHeight / ROW) - 2);
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
  if (event.key === "Enter" && rows.shown.length) {
    showRegion(rows.shown[rows.active], $("rows"));
  } else if (by) {
    rows.active = Math.max(0, Math.min(rows.shown.length - 1, rows.active + by));
    const [box, head] = [$("rows"), ROW + 4];
    const top = rows.active * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW > box.scrollTop + box.clientHeight - head) box.scrollTop = top + ROW - box.clientHeight + head;
    drawRows();
  } else {
    return;
  }
  event.preventDefault();
}
