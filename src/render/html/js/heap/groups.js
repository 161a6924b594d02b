// The same by module, by where threads began, and by size.

const groups = { by: "module" };
const GROUPS = [
  ["module", "Modules", "The program or library whose function called the allocator"],
  ["thread", "Threads", "The function that the thread began with"],
  ["size", "Sizes", "What the allocator gives for a block (malloc_usable_size)"],
];

on("process", (p) => {
  const offered = GROUPS.filter(([name]) => name !== "size" || (p.sizes && p.sizes.length));
  if (!offered.some(([name]) => name === groups.by)) groups.by = "module";
  $("groups").replaceChildren(
    h("div", { class: "title" }, h("h2", { id: "groups-title" }, "Modules, threads, sizes"),
      h("div", { class: "tools" }, choice("Grouped by", offered, groups.by, (value) => { groups.by = value; drawGroups(); }))),
    h("div", { class: "card" }, h("p", { id: "groups-line", class: "line" }), h("div", { id: "groups-table", class: "scroll" })));
  drawGroups();
});

function drawGroups() {
  $("groups-line").replaceChildren(GROUPS.find(([name]) => name === groups.by)[2]);
  $("groups-table").replaceChildren(groups.by === "size" ? sizesTable(state.process) : groupTable(state.process, groups.by));
}

function groupTable(p, by) {
  const t = p.table;
  const names = ["bytes", "peak_bytes", "calls", "allocated"];
  const known = names.filter((name) => isKnown(p, name));
  const labels = { bytes: "outstanding", peak_bytes: "at the peak", calls: "calls", allocated: "allocated" };
  const shown = (name, value) => (name === "calls" ? thousands(value) : size(value));
  const sums = new Map();
  for (let i = 0; i < t.n; i++) {
    const name = text(t[by][i]);
    const found = sums.get(name) || known.map(() => 0);
    sums.set(name, found.map((each, k) => each + Math.max(0, t[known[k]][i])));
  }
  const rows = [...sums].sort(([, a], [, b]) => b[0] - a[0] || b[b.length - 1] - a[a.length - 1]);
  const most = Math.max(1, ...rows.map(([, values]) => values[0]));
  const row = ([name, values]) => h("tr", {},
    h("th", { scope: "row" }, by === "module" ? swatch(name) : null, name),
    h("td", { class: "meter", "aria-hidden": "true" }, h("span", { style: { width: `${Math.max(0.6, (100 * values[0]) / most)}%`, "--c": by === "module" ? color(name) : "#5b8fc7", "--full": "100%" } })),
    values.map((value, k) => h("td", {}, shown(known[k], value))));
  return h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, by), h("td"), known.map((name) => h("th", { scope: "col" }, labels[name])))),
    h("tbody", {}, rows.map(row)),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "total"), h("td", { class: "meter" }), known.map((name) => h("td", {}, shown(name, sum(t[name])))))));
}

function sizesTable(p) {
  const label = (each) => (each.to === 0 ? "not reported by the allocator" : each.from === each.to ? count(each.from, "byte") : `${size(each.from)} to ${size(each.to + 1)}`);
  const rows = [...p.sizes].sort((a, b) => b.bytes + b.rounding - a.bytes - a.rounding);
  const most = Math.max(1, ...rows.map((each) => each.bytes + each.rounding));
  const row = (each) => h("tr", {}, h("th", { scope: "row" }, label(each)),
    h("td", { class: "meter", "aria-hidden": "true" }, h("span", { style: { width: `${Math.max(0.6, (100 * (each.bytes + each.rounding)) / most)}%`, "--c": "#5b8fc7", "--full": `${(100 * each.bytes) / (each.bytes + each.rounding || 1)}%` } })),
    [size(each.bytes), thousands(each.blocks), size(each.rounding), percent(each.rounding, each.bytes + each.rounding)].map((cell) => h("td", {}, cell)));
  const all = (name) => rows.reduce((total, each) => total + each[name], 0);
  return h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "block"), h("td"), ["outstanding", "blocks", "rounding", "of it"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(row)),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "total"), h("td", { class: "meter" }),
      [size(all("bytes")), thousands(all("blocks")), size(all("rounding")), percent(all("rounding"), all("bytes") + all("rounding"))].map((cell) => h("td", {}, cell)))));
}
