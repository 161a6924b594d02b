// Stacks of all mappings as a tree, with four widths a node.

const WIDTHS = [
  ["virt", "VIRT", "All that is mapped"],
  ["writable", "Writable", "Mapped with PROT_WRITE: could be touched"],
  ["rss", "RSS", "In memory"],
  ["unused", "Unused", "Mapped, neither in memory nor in swap: what VIRT has more than RSS"],
];

const FIRST_WIDTH = 3;
const COLOR_IS = "the category of most of it";

/** Of a width, as text. */
const amountText = (value) => size(value);

/** Why a region has no stack. */
function withoutStack(table, i) {
  if (report.backend === "snapshot") return "not traced";
  if (text(table.doubt[i]) || table.op[i] >= 0) return "call without its stack";
  return text(table.evidence[i]) === "kernel" || text(table.category[i]) === "kernel" ? "mapped by the kernel" : "no call was seen";
}

/** Sums by stack and category: what the tree is made of. */
function stackSums(p) {
  const { table } = p;
  const sums = new Map();
  for (let i = 0; i < table.n; i++) {
    const stack = table.stack[i];
    const why = stack < 0 ? withoutStack(table, i) : "";
    const key = `${stack < 0 ? why : stack}\0${table.category[i]}\0${stack < 0 ? table.part[i] + "\0" + table.path[i] : ""}`;
    let sum = sums.get(key);
    if (!sum) {
      sum = { stack, why, category: text(table.category[i]), label: stack < 0 ? regionLabel(table, i) : "", values: [0, 0, 0, 0] };
      sums.set(key, sum);
    }
    const { values } = sum;
    values[0] += table.virt[i];
    values[1] += isWritable(table, i) ? table.virt[i] : 0;
    values[2] += table.rss[i];
    values[3] += table.unused[i];
  }
  return [...sums.values()];
}

function treeNode(name, module, category) {
  return { name, module, category, values: [0, 0, 0, 0], children: new Map(), parent: null, depth: 0, colors: new Map(), stacks: new Set() };
}

/** Callers first; reversed: what it is first, then the requesting stack. */
function buildTree(p, reversed) {
  const root = treeNode(p.comm || "all", "", "");
  for (const sum of stackSums(p)) {
    const frames = sum.stack >= 0 ? framesOf(sum.stack).map(frame).map((f) => [f.name, f.module, ""]).reverse() : [[sum.why, "", ""]];
    const what = [categoryName(sum.category), "", sum.category];
    const leaf = sum.label && sum.label !== what[0] ? [[sum.label, "", ""]] : [];
    const path = reversed ? [what, ...leaf, ...frames.reverse()] : sum.stack >= 0 ? [...frames, what] : [...frames, what, ...leaf];
    let node = root;
    add(node, sum);
    for (const [name, module, category] of path) {
      const key = `${module}\0${name}\0${category}`;
      let next = node.children.get(key);
      if (!next) {
        next = treeNode(name, module, category);
        next.parent = node;
        next.depth = node.depth + 1;
        node.children.set(key, next);
      }
      node = next;
      add(node, sum);
    }
  }
  return root;
}

function add(node, sum) {
  sum.values.forEach((bytes, w) => { node.values[w] += bytes; });
  const bytes = node.colors.get(sum.category) || [0, 0, 0, 0];
  node.colors.set(sum.category, bytes.map((each, w) => each + sum.values[w]));
  node.stacks.add(sum.stack);
}

/** The category of most of a node's bytes of one width. */
function mainCategory(node, width) {
  let [best, most] = ["", -1];
  for (const [id, bytes] of node.colors) if (bytes[width] > most) [best, most] = [id, bytes[width]];
  return best;
}

/** `libc.so.6  malloc` */
const nodeText = (node) => (node.module ? `${node.name}  ${node.module}` : node.name);
