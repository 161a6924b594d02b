// VIRT and RSS over time, by category, with the largest calls as marks.

const chart = { what: "virt", at: -1 };
const CHART = { width: 1100, height: 260, left: 76, right: 12, top: 14, bottom: 30 };
/** Marks of calls at most. */
const MARKS = 12;

on("process", (p) => {
  const section = $("timeline");
  const has = p.timeline.length > 1;
  section.hidden = !has;
  document.querySelector('#nav a[href="#timeline"]').hidden = !has;
  if (!has) { section.replaceChildren(); return; }
  const options = [["virt", "VIRT", "Address space"]];
  if (p.timeline.some((point) => point.rss !== null)) options.push(["rss", "RSS", "In memory"]);
  else chart.what = "virt";
  chart.at = -1;
  section.replaceChildren(
    h("div", { class: "title" }, h("h2", { id: "timeline-title" }, "Timeline"),
      h("div", { class: "tools" }, choice("What the areas show", options, chart.what, (what) => { chart.what = what; drawChart(); }))),
    h("div", { class: "card" }, h("p", { id: "chart-line", class: "line" }),
      h("div", { id: "chart", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-labelledby": "timeline-title", "aria-describedby": "chart-help",
        onkeydown: chartKey, onpointermove: chartMove, onpointerleave: (event) => { chart.at = -1; tip(event, null); drawChart(); } }),
      h("p", { id: "chart-help", class: "hint" }, "← → move from snapshot to snapshot · marks are the largest calls whose mapping is still there" + (p.timeline_every > 1 ? ` · one snapshot in ${thousands(p.timeline_every)} is kept` : "")),
      h("details", {}, h("summary", {}, "As a table"), chartTable(p))));
  drawChart();
});
on("theme", () => { if ($("chart")) drawChart(); });
on("category", () => { if ($("chart")) drawChart(); });

const sizesOf = (point) => (chart.what === "rss" ? point.rss_by_category || {} : point.by_category);
const totalOf = (point) => (chart.what === "rss" ? point.rss || 0 : point.virt);

function chartScale(p) {
  const points = p.timeline;
  const [first, last] = [Math.min(0, points[0].t_ns), points[points.length - 1].t_ns];
  const peak = chart.what === "virt" && p.peak ? p.peak.virt : 0;
  const top = niceTop(Math.max(peak, ...points.map(totalOf)));
  const { width, height, left, right, top: above, bottom } = CHART;
  return {
    top, first, last,
    x: (t) => left + ((t - first) / Math.max(1, last - first)) * (width - left - right),
    y: (bytes) => height - bottom - (bytes / top) * (height - above - bottom),
  };
}

/** A round number of bytes at or above. */
function niceTop(bytes) {
  let unit = 4096;
  while (unit * 8 < bytes) unit *= 2;
  return Math.max(1, Math.ceil((bytes * 1.02) / unit) * unit);
}

function drawChart() {
  const p = state.process;
  const points = p.timeline;
  const { x, y, top, first, last } = chartScale(p);
  const { width, height, left, right, bottom } = CHART;
  const ids = [...new Set(points.flatMap((point) => Object.keys(sizesOf(point))))];
  const weight = (id) => points.reduce((sum, point) => sum + (sizesOf(point)[id] || 0), 0);
  ids.sort((a, b) => weight(b) - weight(a));
  const base = points.map(() => 0);
  const areas = ids.map((id) => {
    const lower = base.map((bytes, i) => `${x(points[i].t_ns).toFixed(1)},${y(bytes).toFixed(1)}`).reverse();
    points.forEach((point, i) => { base[i] += sizesOf(point)[id] || 0; });
    const upper = base.map((bytes, i) => `${x(points[i].t_ns).toFixed(1)},${y(bytes).toFixed(1)}`);
    const aside = state.category && state.category !== id;
    return s("path", { d: `M${upper.join("L")}L${lower.join("L")}Z`, fill: color(id), "fill-opacity": aside ? 0.12 : 0.72, class: "area", "data-id": id });
  });
  const line = (values, name) => s("polyline", { class: `curve ${name}`, points: values.map((bytes, i) => (bytes === null ? "" : `${x(points[i].t_ns).toFixed(1)},${y(bytes).toFixed(1)}`)).join(" ") });
  const grid = [0, 0.25, 0.5, 0.75, 1].map((part) => [
    s("line", { class: "grid", x1: left, x2: width - right, y1: y(top * part), y2: y(top * part) }),
    s("text", { class: "tick", x: left - 8, y: y(top * part) + 4, "text-anchor": "end" }, size(top * part))]);
  const times = [0, 0.25, 0.5, 0.75, 1].map((part) => s("text", { class: "tick", x: x(first + (last - first) * part), y: height - 8,
    "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, `${((first + (last - first) * part) / 1e9).toFixed(last - first < 2e9 ? 2 : 1)} s`));
  const peak = chart.what === "virt" && p.peak && p.peak.t_ns >= first && p.peak.t_ns <= last
    ? s("g", { class: "peak" }, s("circle", { cx: x(p.peak.t_ns), cy: y(p.peak.virt), r: 4 }),
      s("text", { class: "tick", x: Math.min(width - 70, Math.max(left + 60, x(p.peak.t_ns))), y: y(p.peak.virt) - 6 < 12 ? y(p.peak.virt) + 16 : y(p.peak.virt) - 7, "text-anchor": "middle" }, `peak ${size(p.peak.virt)}`)) : null;
  const cross = chart.at >= 0 ? s("line", { class: "cross", x1: x(points[chart.at].t_ns), x2: x(points[chart.at].t_ns), y1: 8, y2: height - bottom }) : null;
  const words = `${chart.what === "rss" ? "RSS" : "VIRT"} from ${moment(first)} to ${moment(last)}: ${size(Math.min(...points.map(totalOf)))} to ${size(Math.max(...points.map(totalOf)))}`;
  $("chart").replaceChildren(s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
    grid, areas, chart.what === "virt" ? line(points.map((point) => point.rss), "rss") : null, line(points.map(totalOf), "total"), times, chartMarks(p, x), peak, cross));
  chartLine(p);
}

/** The largest calls whose mapping is still there. */
function chartMarks(p, x) {
  const { table } = p;
  const byEvent = new Map();
  for (let i = 0; i < table.n; i++) {
    if (table.op[i] < 0) continue;
    const found = byEvent.get(table.event[i]);
    if (found) found.bytes += table.virt[i]; else byEvent.set(table.event[i], { i, bytes: table.virt[i], t: table.time[i] });
  }
  const { first, last } = chartScale(p);
  const largest = [...byEvent.values()].filter(({ t }) => t >= first && t <= last).sort((a, b) => b.bytes - a.bytes).slice(0, MARKS);
  return largest.map(({ i, bytes, t }) => s("path", {
    class: "mark", d: `M${x(t).toFixed(1)},${CHART.height - CHART.bottom}l-4,7h8z`, fill: color(text(table.category[i])),
    onclick: () => showRegion(i, $("chart")),
  }, s("title", {}, `${moment(t)}: ${text(table.op[i])}, ${size(bytes)} left of it, ${regionLabel(table, i)}`)));
}

function chartLine(p) {
  const at = chart.at < 0 ? p.timeline.length - 1 : chart.at;
  const point = p.timeline[at];
  $("chart-line").textContent = `${moment(point.t_ns)} · VIRT ${size(point.virt)} · RSS ${point.rss === null ? "not known" : size(point.rss)}` +
    (chart.at < 0 ? ` · ${count(p.timeline.length, "snapshot")}` : "");
}

function chartTop(point) {
  return Object.entries(sizesOf(point)).sort((a, b) => b[1] - a[1]).slice(0, 5).map(([id, bytes]) => `${categoryName(id)} ${size(bytes)}`);
}

function chartMove(event) {
  const box = $("chart").getBoundingClientRect();
  const at = ((event.clientX - box.left) / box.width) * CHART.width;
  const { x } = chartScale(state.process);
  const points = state.process.timeline;
  let best = 0;
  points.forEach((point, i) => { if (Math.abs(x(point.t_ns) - at) < Math.abs(x(points[best].t_ns) - at)) best = i; });
  tip(event, [`${moment(points[best].t_ns)} · ${chart.what === "rss" ? "RSS" : "VIRT"} ${size(totalOf(points[best]))}`, ...chartTop(points[best])]);
  if (best !== chart.at && !event.target.closest(".mark")) { chart.at = best; drawChart(); }
}

function chartKey(event) {
  const last = state.process.timeline.length - 1;
  const from = chart.at < 0 ? last : chart.at;
  const to = { ArrowLeft: from - 1, ArrowRight: chart.at < 0 ? 0 : from + 1, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  chart.at = Math.max(0, Math.min(last, to));
  drawChart();
  const point = state.process.timeline[chart.at];
  say(`${moment(point.t_ns)}: VIRT ${size(point.virt)}, RSS ${point.rss === null ? "not known" : size(point.rss)}; ${chartTop(point).join(", ")}`);
}

/** Rows of the table at most. */
const CHART_ROWS = 60;

function chartTable(p) {
  const step = Math.ceil(p.timeline.length / CHART_ROWS);
  const points = p.timeline.filter((_, i) => i % step === 0 || i === p.timeline.length - 1);
  return h("div", { class: "scroll" }, h("table", { class: "small" },
    h("thead", {}, h("tr", {}, ["time", "VIRT", "RSS", "largest"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, points.map((point) => h("tr", {}, h("th", { scope: "row" }, moment(point.t_ns)), h("td", {}, size(point.virt)),
      h("td", {}, point.rss === null ? "not known" : size(point.rss)),
      h("td", { class: "words" }, Object.entries(point.by_category).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([id, bytes]) => `${categoryName(id)} ${size(bytes)}`).join(", ")))))));
}
