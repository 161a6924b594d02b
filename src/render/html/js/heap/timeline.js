// What was outstanding when each interval ended (--interval), and the peak.

on("process", (p) => {
  const points = p.timeline || [];
  const shown = points.length > 1;
  $("timeline").hidden = !shown;
  document.querySelector('#nav a[href="#timeline"]').hidden = !shown;
  if (!shown) return;
  $("timeline").replaceChildren(h("h2", { id: "timeline-title" }, "Timeline"),
    h("div", { class: "card" }, h("p", { class: "line" }, `Outstanding bytes at the end of ${count(points.length, "interval")}`), h("div", { id: "chart" }, heapChart(p, points))));
});

function heapChart(p, points) {
  const [wide, high, left, below] = [1100, 240, 80, 26];
  const t = p.totals;
  const last = Math.max(points[points.length - 1].t_ns, p.watched_ns || 0, 1);
  const most = Math.max(1, t.peak_bytes || 0, ...points.map((point) => point.bytes));
  const x = (ns) => left + ((wide - left - 10) * ns) / last;
  const y = (bytes) => 10 + (high - below - 10) * (1 - bytes / most);
  const line = points.map((point, at) => `${at ? "L" : "M"}${x(point.t_ns).toFixed(1)} ${y(point.bytes).toFixed(1)}`).join("");
  const grid = [0, 0.5, 1].map((part) => [
    s("line", { class: "grid", x1: left, x2: wide - 10, y1: y(most * part), y2: y(most * part) }),
    s("text", { class: "tick", x: left - 8, y: y(most * part) + 4, "text-anchor": "end" }, size(Math.round(most * part)))]);
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => s("text", { class: "tick", x: x(last * part), y: high - 6, "text-anchor": part === 1 ? "end" : "middle" }, moment(last * part)));
  const peak = t.peak_bytes === null ? null : s("g", { class: "peak" }, s("circle", { cx: x(t.peak_ns), cy: y(t.peak_bytes), r: 4 },
    s("title", {}, `peak: ${size(t.peak_bytes)} at ${moment(t.peak_ns)}`)));
  return s("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `Outstanding bytes over ${duration(last)}, at most ${size(most)}` },
    grid, ticks, s("path", { class: "curve", d: line }), peak);
}
