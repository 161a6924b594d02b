// The flame graph of the requesting stacks, callers on top.

const FLAME_ROW = 22;
/** Narrower frames are left out, in pixels. */
const NARROW = 1.5;
const flame = { width: FIRST_WIDTH, reversed: false, root: null, zoom: null, typed: "", focus: null, found: new Set() };

on("process", (p) => {
  if (residencyUnknown(p) && flame.width > 1) flame.width = 0;
  Object.assign(flame, { zoom: null, typed: "", focus: null });
  const widths = residencyUnknown(p) ? WIDTHS.slice(0, 2) : WIDTHS;
  $("flame").replaceChildren(
    h("div", { class: "title" }, h("h2", { id: "flame-title" }, "Flame graph"),
      h("div", { class: "tools" },
        choice("Width of frames", widths, WIDTHS[flame.width][0], (value) => {
          flame.width = WIDTHS.findIndex(([each]) => each === value);
          say(WIDTHS[flame.width][2]);
          drawFlame();
        }),
        h("button", { id: "flame-reversed", type: "button", role: "switch", "aria-checked": String(flame.reversed), class: "switch", title: "What it is first, then the requesting stack",
          onclick: (event) => {
            flame.reversed = !flame.reversed;
            event.currentTarget.setAttribute("aria-checked", String(flame.reversed));
            growTree();
          } }, h("span", { class: "knob-track", "aria-hidden": "true" }), "Reversed"),
        h("input", { id: "flame-search", type: "search", placeholder: "Search functions", "aria-label": "Search functions in the flame graph",
          autocomplete: "off", spellcheck: "false", oninput: (event) => { flame.typed = event.target.value; drawFlame(); } }))),
    h("div", { class: "card" },
      h("p", { id: "flame-line", class: "line" }),
      h("div", { id: "flame-graph", role: "tree", "aria-labelledby": "flame-title", "aria-describedby": "flame-help", onkeydown: flameKey }),
      h("p", { id: "flame-help", class: "hint" }, `Click or Enter zooms in · Esc zooms out · ↑ ↓ caller and callee, ← → neighbours · colour is ${COLOR_IS}`)));
  growTree();
});

function growTree() {
  flame.root = buildTree(state.process, flame.reversed);
  flame.zoom = flame.root;
  flame.focus = null;
  drawFlame();
}

const flameValue = (node) => node.values[flame.width];
on("category", () => { if (flame.root) drawFlame(); });
on("theme", () => { if (flame.root) drawFlame(); });

function drawFlame() {
  const graph = $("flame-graph");
  const room = graph.clientWidth || 1000;
  const zoom = flame.zoom;
  const all = flameValue(zoom);
  const typed = flame.typed.trim().toLowerCase();
  flame.found.clear();
  flame.drawn = [];
  flame.theme = theme();
  let [matched, deepest] = [0, 0];
  const matches = (node) => typed !== "" && nodeText(node).toLowerCase().includes(typed);
  for (let node = zoom.parent; node; node = node.parent) flame.drawn.push({ node, left: 0, share: 1, above: true });
  flame.drawn.reverse();
  // an explicit stack: trees may be deep
  const open = [{ node: zoom, left: 0, within: false }];
  while (open.length) {
    const { node, left, within } = open.pop();
    const value = flameValue(node);
    const hit = matches(node);
    if (hit) flame.found.add(node);
    if (hit && !within) matched += value;
    const share = all > 0 ? value / all : 0;
    const shown = share * room >= NARROW;
    if (shown || node === zoom) {
      flame.drawn.push({ node, left, share: all > 0 ? share : 1, above: false });
      deepest = Math.max(deepest, node.depth);
    }
    if (!shown && !typed) continue;
    let at = left;
    for (const child of sortedChildren(node)) {
      open.push({ node: child, left: at, within: within || hit });
      at += all > 0 ? flameValue(child) / all : 0;
    }
  }
  if (!flame.drawn.some(({ node }) => node === flame.focus)) flame.focus = zoom;
  graph.style.height = `${(deepest + 1) * FLAME_ROW + 2}px`;
  graph.replaceChildren(...flame.drawn.map((each) => flameBox(each, room, all)));
  flameLine(zoom, typed, matched, all);
}

function sortedChildren(node) {
  return [...node.children.values()].sort((a, b) => flameValue(b) - flameValue(a) || (a.name < b.name ? -1 : 1));
}

function flameBox({ node, left, share, above }, room, all) {
  const id = mainCategory(node, flame.width);
  const aside = (state.category && !node.colors.has(state.category)) || (flame.typed.trim() && !flame.found.has(node));
  const paint = mix(color(id), flame.theme.card, aside ? 0.12 : above ? 0.25 : node.category ? 0.8 : 0.42);
  const wide = share * room;
  const value = flameValue(node);
  const words = `${nodeText(node)}, ${amountText(value)}, ${percent(value, flameValue(flame.root))}`;
  const box = h("div", {
    role: "treeitem", class: `frame${above ? " above" : ""}${node.category ? " what" : ""}${flame.found.has(node) ? " found" : ""}`,
    tabindex: node === flame.focus ? "0" : "-1", "aria-label": words, "aria-level": node.depth + 1,
    "aria-expanded": node.children.size ? "true" : null, "aria-selected": String(node === flame.zoom),
    style: { left: `${left * 100}%`, width: `max(1px, calc(${share * 100}% - 1px))`, top: `${node.depth * FLAME_ROW}px`, background: paint, color: node.category ? inkOn(paint) : null },
    onclick: () => flameZoom(node),
    onpointermove: (event) => tip(event, flameTip(node)), onpointerleave: (event) => tip(event, null),
    onfocus: () => { flame.focus = node; },
  });
  if (wide > 34) box.append(h("span", { class: "name" }, frameName(node)), wide > 170 ? h("span", { class: "amount" }, amountText(value)) : "");
  node.box = box;
  return box;
}

/** A function without a name is shown with its module. */
function frameName(node) {
  return /^(fn@|\+0x)/.test(node.name) ? `${node.module} ${node.name}` : node.name;
}

function flameTip(node) {
  return [nodeText(node), ...WIDTHS.map(([, name], w) => `${name} ${amountText(node.values[w], w)}` +
    (w === flame.width ? ` · ${percent(node.values[w], flame.root.values[w])}` : "")), node.category ? null : categoryName(mainCategory(node, flame.width))];
}

function flameLine(zoom, typed, matched, all) {
  const zoomed = zoom !== flame.root;
  $("flame-line").replaceChildren(...[
    `${zoomed ? nodeText(zoom) : "All"} · ${WIDTHS[flame.width][1]} ${amountText(all)}`,
    zoomed ? ` · ${percent(all, flameValue(flame.root))} of all ` : null,
    zoomed ? h("button", { type: "button", class: "link", id: "flame-all", onclick: () => flameZoom(flame.root) }, "show all") : null,
    zoomed && [...zoom.stacks].some((stack) => stack >= 0) ? " · " : null,
    zoomed && [...zoom.stacks].some((stack) => stack >= 0)
      ? h("button", { type: "button", class: "link", onclick: () => emit("regionsOf", zoom.stacks, zoom.name) }, "its regions") : null,
    typed ? h("span", { id: "flame-matched", class: "matched" }, ` · “${flame.typed.trim()}”: ${amountText(matched)}, ${percent(matched, all)}`) : null,
  ].filter((part) => part !== null));
  if (typed) say(`${amountText(matched)} match, ${percent(matched, all)}`);
}

function flameZoom(node) {
  const had = $("flame-graph").contains(document.activeElement);
  flame.zoom = node;
  flame.focus = node;
  tip({}, null);
  drawFlame();
  if (had) flame.focus.box.focus();
}

function flameKey(event) {
  const node = flame.focus;
  if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
  const neighbour = (by) => {
    const level = flame.drawn.filter((each) => each.node.depth === node.depth).sort((a, b) => a.left - b.left).map((each) => each.node);
    return level[level.indexOf(node) + by];
  };
  const drawn = (node) => (node && flame.drawn.some((each) => each.node === node) ? node : null);
  const below = () => sortedChildren(node).find(drawn);
  const next = { ArrowUp: () => drawn(node.parent), ArrowDown: below, ArrowLeft: () => neighbour(-1), ArrowRight: () => neighbour(1),
    Home: () => flame.root, End: () => flame.drawn[flame.drawn.length - 1].node }[event.key];
  if (event.key === "Enter" || event.key === " ") {
    flameZoom(node);
  } else if (event.key === "Escape" && flame.zoom !== flame.root) {
    flameZoom(flame.zoom.parent);
  } else if (next) {
    const to = next();
    if (to) {
      node.box.tabIndex = -1;
      flame.focus = to;
      to.box.tabIndex = 0;
      to.box.focus();
    }
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
}
