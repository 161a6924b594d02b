// Stacks of all allocations as a tree, with as many values a node as there are views.

const WAYS_TO_LOOK = [
  ["bytes", "Outstanding", "Allocated and not freed"],
  ["peak_bytes", "At the peak", "Outstanding when all together had the most"],
  ["allocated", "Allocated", "Bytes of all calls, whatever was freed since"],
  ["calls", "Calls", "That allocated, whatever was freed since"],
  ["temporary", "Temporary", "Calls whose block was freed before the thread's next allocation"],
];
const WIDTHS = WAYS_TO_LOOK.filter(([name]) => report.processes.some((p) => isKnown(p, name)));
const FIRST_WIDTH = 0;
const COLOR_IS = "the module that called the allocator";

/** Bytes, or calls. */
const amountText = (value, w = flame.width) => (["calls", "temporary"].includes(WIDTHS[w][0]) ? count(value, "call") : size(value));

function treeNode(name, module, category) {
  return { name, module, category, values: WIDTHS.map(() => 0), children: new Map(), parent: null, depth: 0, colors: new Map(), stacks: new Set() };
}

/** Callers first; reversed: the allocator's function first, then who called it. */
function buildTree(p, reversed) {
  const t = p.table;
  const root = treeNode(p.comm || "all", "", "");
  for (let i = 0; i < t.n; i++) {
    const values = WIDTHS.map(([name]) => Math.max(0, t[name][i]));
    const module = text(t.module[i]);
    const frames = t.stack[i] >= 0 ? framesOf(t.stack[i]).map(frame).map((f) => [f.name, f.module, ""]).reverse() : [[text(t.why[i]), "", ""]];
    const path = [...frames, [text(t.function[i]), "", module]];
    let node = root;
    add(node, values, module);
    for (const [name, of, category] of reversed ? path.reverse() : path) {
      const key = `${of}\0${name}\0${category}`;
      let next = node.children.get(key);
      if (!next) {
        next = treeNode(name, of, category);
        next.parent = node;
        next.depth = node.depth + 1;
        node.children.set(key, next);
      }
      node = next;
      add(node, values, module);
    }
  }
  return root;
}

function add(node, values, module) {
  values.forEach((value, w) => { node.values[w] += value; });
  const known = node.colors.get(module) || WIDTHS.map(() => 0);
  node.colors.set(module, known.map((each, w) => each + values[w]));
}

/** The module of most of a node. */
function mainCategory(node, width) {
  let [best, most] = ["", -1];
  for (const [id, values] of node.colors) if (values[width] > most) [best, most] = [id, values[width]];
  return best;
}

const nodeText = (node) => (node.module ? `${node.name}  ${node.module}` : node.name);
