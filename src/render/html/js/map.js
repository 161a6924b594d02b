// The address space as a strip: colour is what it is, height of the fill is how much is in memory.

const SCALES = [
  ["squeezed", "Squeezed", "Regions to scale, gaps cut short"],
  ["scale", "To scale", "The whole range, from the first mapped byte to the last"],
  ["log", "Logarithmic", "Small regions next to large ones"],
];
const map = { kind: "squeezed", layout: null, view: null, hover: -1, soft: new Map() };
const AXIS = 22;

on("process", (p) => {
  const strip = h("canvas", {
    id: "map-strip", tabindex: "0", role: "application", "aria-roledescription": "address space map", "aria-describedby": "map-help",
    "aria-label": `Address space of ${p.comm}, ${count(p.table.n, "region")}`,
    onkeydown: mapKey, onpointerdown: mapDown, onpointermove: mapMove, onpointerleave: mapLeave, onwheel: mapWheel,
    onclick: mapClick,
  });
  const whole = h("canvas", { id: "map-whole", "aria-hidden": "true", onpointerdown: wholeDown });
  const button = (label, name, act) => h("button", { type: "button", title: name, "aria-label": name, onclick: act }, label);
  $("map").replaceChildren(
    h("div", { class: "title" }, h("h2", { id: "map-title" }, "Address space"),
      h("div", { class: "tools" },
        choice("Scale of the map", SCALES, map.kind, (kind) => { map.kind = kind; mapLayout(); say(SCALES.find(([value]) => value === kind)[2]); }),
        h("div", { class: "buttons" }, button("−", "Zoom out", () => mapZoom(0.5)), button("+", "Zoom in", () => mapZoom(2)), button("All", "Show everything", () => { map.view.all(); drawMap(); })))),
    h("div", { class: "card" }, whole, strip,
      h("p", { id: "map-line", class: "line" }, ""),
      h("ul", { class: "legend", "aria-label": "Categories" }, p.categories.map((row) => h("li", {}, h("button", {
        type: "button", "aria-pressed": "false", "data-category": row.id, onclick: () => showCategory(row.id),
      }, swatch(row.id), row.name))), h("li", { class: "key" }, h("span", { class: "swatch fill" }), "in memory"),
      h("li", { class: "key" }, h("span", { class: "swatch pale" }), "mapped only"), h("li", { class: "key" }, h("span", { class: "swatch hatch" }), "reserved (PROT_NONE)")),
      h("p", { id: "map-help", class: "hint" }, "Drag or ← → to pan · Ctrl + wheel, + and − to zoom · Shift + click zooms into a region, click opens it · , and . go to the region before and after, Enter opens it, z zooms into it · 0 shows everything")));
  mapLayout();
});

function mapLayout() {
  map.layout = layoutOf(state.process.table, map.kind);
  map.view = new View(map.layout.length);
  map.hover = -1;
  drawMap();
}

function mapZoom(times, around) {
  map.view.zoom(times, around);
  drawMap();
}

function mapShow(i) {
  const { from, to } = map.layout;
  map.view.show(from[i], to[i], 0.8);
  drawMap();
}

/** Redraws before the next frame, once. */
function drawMap() {
  if (map.waiting) return;
  map.waiting = true;
  requestAnimationFrame(() => {
    map.waiting = false;
    if (!state.process || !$("map-strip")) return;
    map.theme = theme();
    map.soft.clear();
    drawStrip();
    drawWhole();
    describe();
  });
}
on("category", drawMap);
on("theme", drawMap);
on("region", (i) => {
  if (i >= 0 && map.layout) {
    const [from, to] = [map.layout.from[i], map.layout.to[i]];
    if (to < map.view.low || from > map.view.high) map.view.show(from, to, 0.1);
  }
  drawMap();
});

/** Full and pale colour of a category, paler where another one stands out. */
function tones(category) {
  let found = map.soft.get(category);
  if (!found) {
    const id = text(category);
    const aside = state.category && state.category !== id;
    const full = aside ? mix(color(id), map.theme.card, 0.25) : color(id);
    found = { full, pale: mix(full, map.theme.card, aside ? 0.35 : 0.3), line: mix(full, map.theme.card, 0.6) };
    map.soft.set(category, found);
  }
  return found;
}

function hatch(g, tone) {
  if (!tone.hatch) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const t = tile.getContext("2d");
    t.fillStyle = tone.pale;
    t.fillRect(0, 0, 8, 8);
    t.strokeStyle = mix(tone.full, tone.pale, 0.45);
    t.lineWidth = 1.2;
    t.beginPath();
    for (const x of [-8, 0, 8]) { t.moveTo(x, 8); t.lineTo(x + 8, 0); }
    t.stroke();
    tone.hatch = g.createPattern(tile, "repeat");
  }
  return tone.hatch;
}

/** Regions of a line on a canvas; those narrower than a pixel or two share a column. */
function drawRegions(g, [width, height], [low, high]) {
  const { table } = state.process;
  const { from, to } = map.layout;
  const scale = width / (high - low);
  const columns = Math.ceil(width) + 1;
  const [bytes, resident, lead] = [new Float64Array(columns), new Float64Array(columns), new Float64Array(columns)];
  const category = new Int32Array(columns).fill(-1);
  const last = firstAfter(from, high);
  for (let i = firstAfter(to, low); i < last; i++) {
    const x = (from[i] - low) * scale;
    const wide = (to[i] - from[i]) * scale;
    if (wide >= 2) {
      const left = Math.max(-4, x);
      const shown = Math.min(width + 4, x + wide) - left - (wide > 5 ? 1 : 0);
      const tone = tones(table.category[i]);
      g.fillStyle = isReserved(table, i) ? hatch(g, tone) : tone.pale;
      g.fillRect(left, 0, shown, height);
      const fill = table.rss[i] > 0 ? Math.max(2, (height * table.rss[i]) / table.virt[i]) : 0;
      g.fillStyle = tone.full;
      g.fillRect(left, height - fill, shown, fill);
      if (table.swap[i] > 0) {
        const swapped = (height * table.swap[i]) / table.virt[i];
        g.fillStyle = tone.line;
        g.fillRect(left, height - fill - swapped, shown, swapped);
      }
    } else {
      // the category that has most of the column, by the vote of Boyer and Moore
      const at = Math.min(columns - 1, Math.max(0, Math.floor(x)));
      bytes[at] += table.virt[i];
      resident[at] += table.rss[i];
      if (category[at] === table.category[i]) lead[at] += table.virt[i];
      else if ((lead[at] -= table.virt[i]) < 0) { category[at] = table.category[i]; lead[at] = -lead[at]; }
    }
  }
  for (let at = 0; at < columns; at++) {
    if (category[at] < 0) continue;
    const tone = tones(category[at]);
    g.fillStyle = tone.pale;
    g.fillRect(at, 0, 1, height);
    const fill = resident[at] > 0 ? Math.max(2, (height * resident[at]) / bytes[at]) : 0;
    g.fillStyle = tone.full;
    g.fillRect(at, height - fill, 1, fill);
  }
}

function drawStrip() {
  const [g, width, full] = fit($("map-strip"));
  const height = full - AXIS;
  const { view, layout } = map;
  drawRegions(g, [width, height], [view.low, view.high]);
  const scale = width / view.span;
  const x = (at) => (at - view.low) * scale;
  drawLabels(g, x, [width, height]);
  for (const [i, line] of [[map.hover, 1], [state.region, 2.5]]) {
    if (i < 0) continue;
    const [left, right] = [x(layout.from[i]), x(layout.to[i])];
    g.strokeStyle = map.theme.ink;
    g.lineWidth = line;
    g.strokeRect(Math.max(-5, left) - 0.5, line / 2, Math.max(3, Math.min(width + 5, right) - Math.max(-5, left)), height - line);
    if (line > 2) {
      const middle = Math.min(width - 6, Math.max(6, (Math.max(0, left) + Math.min(width, right)) / 2));
      g.fillStyle = map.theme.ink;
      g.beginPath();
      g.moveTo(middle - 6, height + 8); g.lineTo(middle + 6, height + 8); g.lineTo(middle, height + 1);
      g.fill();
    }
  }
}

function drawLabels(g, x, [width, height]) {
  const { table } = state.process;
  const { from, to, gap } = map.layout;
  g.textBaseline = "middle";
  let free = 0;
  const last = firstAfter(from, map.view.high);
  for (let i = firstAfter(to, map.view.low); i < last; i++) {
    const [left, right] = [Math.max(0, x(from[i])), Math.min(width, x(to[i]))];
    if (right - left > 48) {
      const resident = table.rss[i] / table.virt[i];
      const tone = tones(table.category[i]);
      g.font = "600 12px system-ui, sans-serif";
      const over = resident > 0.88;
      label(g, regionLabel(table, i), [left + 7, 15, right - left - 14], over ? inkOn(tone.full) : map.theme.ink, over ? tone.full : tone.pale);
      g.font = "12px system-ui, sans-serif";
      const deep = resident > 0.72;
      label(g, size(table.virt[i]), [left + 7, 32, right - left - 14], deep ? inkOn(tone.full) : map.theme.muted, deep ? tone.full : tone.pale);
    }
    const first = x(from[i]);
    const begins = gap(i) > 0 || i === 0 || right - left > 130;
    if (begins && first >= free && first < width - 104) {
      g.font = "11px ui-monospace, monospace";
      g.fillStyle = map.theme.muted;
      g.fillRect(first, height, 1, 5);
      g.fillText(hex(table.start[i]), first + 4, height + 13);
      free = first + 112;
    }
    const hole = i > 0 ? first - x(to[i - 1]) : 0;
    if (hole > 64 && first > 40) {
      g.font = "11px system-ui, sans-serif";
      g.fillStyle = map.theme.muted;
      const words = `${size(gap(i))} free`;
      const middle = (Math.max(0, x(to[i - 1])) + Math.min(width, first)) / 2;
      g.fillText(words, middle - g.measureText(words).width / 2, height / 2);
    }
  }
}

/** Text on a ground of its own, cut to a width. */
function label(g, words, [x, y, room], ink, ground) {
  let shown = words;
  if (g.measureText(shown).width > room) {
    let [low, high] = [0, words.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (g.measureText(words.slice(0, middle) + "…").width <= room) low = middle; else high = middle - 1;
    }
    if (low < 3) return;
    shown = words.slice(0, low) + "…";
  }
  g.fillStyle = ground;
  g.fillRect(x - 3, y - 8, g.measureText(shown).width + 6, 16);
  g.fillStyle = ink;
  g.fillText(shown, x, y);
}

/** The whole line, small, and what of it is on show. */
function drawWhole() {
  const [g, width, height] = fit($("map-whole"));
  const { view, layout } = map;
  drawRegions(g, [width, height], [0, layout.length]);
  const [left, right] = [(view.low / layout.length) * width, (view.high / layout.length) * width];
  if (view.span < layout.length) {
    g.fillStyle = map.theme.card;
    g.globalAlpha = 0.6;
    g.fillRect(0, 0, left, height);
    g.fillRect(right, 0, width - right, height);
    g.globalAlpha = 1;
  }
  g.strokeStyle = map.theme.accent;
  g.lineWidth = 2;
  g.strokeRect(Math.max(1, left), 1, Math.max(3, Math.min(width - 2, right - left - 2)), height - 2);
}

/** The region under the pointer; within a pixel or two, the largest. */
function mapHit(event) {
  const box = $("map-strip").getBoundingClientRect();
  const { low, span } = map.view;
  const { from, to } = map.layout;
  const at = low + ((event.clientX - box.left) / box.width) * span;
  const near = (span / box.width) * 1.5;
  let found = -1;
  const last = firstAfter(from, at + near);
  for (let i = firstAfter(to, at - near); i < last; i++) {
    if (from[i] <= at && at < to[i] && to[i] - from[i] > near) return i;
    if (found < 0 || to[i] - from[i] > to[found] - from[found]) found = i;
  }
  return found;
}

function regionLines(table, i) {
  const unknown = residencyUnknown(state.process);
  return [regionLabel(table, i), `${categoryName(text(table.category[i]))}${text(table.part[i]) ? " · " + text(table.part[i]) : ""}`,
    `${hex(table.start[i])}-${hex(table.end[i])} ${text(table.prot[i])}`,
    `VIRT ${size(table.virt[i])}` + (unknown ? "" : ` · RSS ${size(table.rss[i])}`),
    table.stack[i] >= 0 ? `by ${callerOf(table.stack[i])}` : null];
}

function mapMove(event) {
  if (map.drag) {
    const box = event.currentTarget.getBoundingClientRect();
    map.drag.moved = map.drag.moved || Math.abs(event.clientX - map.drag.first) > 4;
    map.view.pan(((map.drag.x - event.clientX) / box.width) * map.view.span);
    map.drag.x = event.clientX;
    tip(event, null);
    drawMap();
    return;
  }
  const i = mapHit(event);
  tip(event, i < 0 ? null : regionLines(state.process.table, i));
  if (i !== map.hover) { map.hover = i; drawMap(); }
}

function mapLeave(event) {
  tip(event, null);
  map.hover = -1;
  drawMap();
}

function mapDown(event) {
  if (event.button !== 0) return;
  const strip = event.currentTarget;
  strip.setPointerCapture(event.pointerId);
  map.drag = { x: event.clientX, first: event.clientX, moved: false };
  strip.addEventListener("pointerup", () => {
    map.dragged = map.drag && map.drag.moved;
    map.drag = null;
  }, { once: true });
}

function mapClick(event) {
  const i = map.dragged ? -1 : mapHit(event);
  map.dragged = false;
  if (i < 0) return;
  if (event.shiftKey) mapShow(i); else showRegion(i, event.currentTarget);
}

function mapWheel(event) {
  const strip = event.currentTarget;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    const box = strip.getBoundingClientRect();
    mapZoom(Math.exp(-event.deltaY * 0.004), map.view.low + ((event.clientX - box.left) / box.width) * map.view.span);
  } else if (event.deltaX || event.shiftKey) {
    event.preventDefault();
    map.view.pan((((event.deltaX || event.deltaY) / strip.clientWidth)) * map.view.span);
    drawMap();
  }
}

function wholeDown(event) {
  const canvas = event.currentTarget;
  const centre = (at) => {
    const box = canvas.getBoundingClientRect();
    const middle = ((at.clientX - box.left) / box.width) * map.view.length;
    map.view.set(middle - map.view.span / 2, middle + map.view.span / 2);
    drawMap();
  };
  canvas.setPointerCapture(event.pointerId);
  canvas.addEventListener("pointermove", centre);
  canvas.addEventListener("pointerup", () => canvas.removeEventListener("pointermove", centre), { once: true });
  centre(event);
}

function mapKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { view } = map;
  const { n } = state.process.table;
  const step = event.shiftKey ? 0.5 : 0.12;
  const neighbour = (by) => {
    if (!n) return;
    const inside = firstAfter(map.layout.to, view.low);
    const next = state.region < 0 ? Math.min(inside, n - 1) : Math.min(n - 1, Math.max(0, state.region + by));
    state.region = next;
    const [from, to] = [map.layout.from[next], map.layout.to[next]];
    if (from < view.low || to > view.high) view.set((from + to - view.span) / 2, (from + to + view.span) / 2);
    say(regionLines(state.process.table, next).filter(Boolean).join(", "));
  };
  const keys = {
    ArrowLeft: () => view.pan(-view.span * step), ArrowRight: () => view.pan(view.span * step),
    ArrowUp: () => view.zoom(1.5), ArrowDown: () => view.zoom(1 / 1.5),
    "+": () => view.zoom(2), "=": () => view.zoom(2), "-": () => view.zoom(0.5), "0": () => view.all(),
    Home: () => view.pan(-view.length), End: () => view.pan(view.length),
    z: () => { if (state.region >= 0) mapShow(state.region); },
    ",": () => neighbour(-1), ".": () => neighbour(1),
    Enter: () => { if (state.region >= 0) showRegion(state.region, $("map-strip")); },
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
  drawMap();
}

/** In words, what is on show. */
function describe() {
  const { table } = state.process;
  const { from, to } = map.layout;
  const [first, last] = [firstAfter(to, map.view.low), firstAfter(from, map.view.high) - 1];
  $("map-line").textContent = last < first || !table.n ? "nothing is mapped here"
    : `${hex(table.start[first])} – ${hex(table.end[last])} · ${count(last - first + 1, "region")}` +
      (map.view.span < map.view.length ? ` · zoom ${zoomText(map.view.length / map.view.span)}` : "");
}

const zoomText = (times) => (times < 10 ? times.toFixed(1) : thousands(Math.round(times))) + "×";
