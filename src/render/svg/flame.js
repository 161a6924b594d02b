// A click zooms; Search (Ctrl-F) marks what a regular expression matches. The address keeps both, so that it
// can be sent to others.
window.addEventListener("load", () => {
"use strict";
const EDGE = 10;
const element = (id) => document.getElementById(id);
const [frames, details, matched, search, unzoom] = ["frames", "details", "matched", "search", "unzoom"].map(element);
const svg = frames.ownerSVGElement;
// In the document's order: each box before those upon it, from the left. The first is all of it.
const boxes = Array.from(frames.children, (group) => {
  const [title, rect, text] = group.children;
  const { x, w, level } = group.dataset;
  const words = title.textContent;
  return { group, rect, text, words, name: words.replace(/ \([^(]*\)$/, ""), x: +x, w: +w, level: +level, shown: "" };
});
let zoomed = boxes[0];
let pattern = null;

function characterWidth() {
  const { text } = boxes[0];
  const before = text.textContent;
  text.textContent = "W".repeat(10);
  const width = text.getComputedTextLength() / 10;
  text.textContent = before;
  return width || 7;
}

function fitted(name, characters) {
  if (name.length <= characters) return name;
  return characters < 3 ? "" : name.slice(0, characters - 2) + "..";
}

function draw() {
  const width = svg.getBoundingClientRect().width - 2 * EDGE;
  const character = characterWidth();
  const end = zoomed.x + zoomed.w;
  frames.setAttribute("width", width);
  element("title").setAttribute("x", width / 2 + EDGE);
  element("subtitle").setAttribute("x", width / 2 + EDGE);
  search.setAttribute("x", width + EDGE);
  matched.setAttribute("x", width + EDGE);
  unzoom.setAttribute("class", zoomed === boxes[0] ? "hide" : "");
  for (const box of boxes) {
    const below = box.level < zoomed.level && box.x <= zoomed.x && box.x + box.w >= end;
    const upon = box.level >= zoomed.level && box.x >= zoomed.x && box.x + box.w <= end;
    box.shown = below ? "parent" : upon ? "upon" : "hide";
    box.group.setAttribute("class", box.shown);
    if (box.shown === "hide") continue;
    const x = below ? 0 : (box.x - zoomed.x) / zoomed.w;
    const part = below ? 1 : box.w / zoomed.w;
    box.rect.setAttribute("x", `${100 * x}%`);
    box.rect.setAttribute("width", `${100 * part}%`);
    box.text.setAttribute("x", `${100 * x}%`);
    box.text.textContent = fitted(box.name, Math.floor((part * width - 6) / character));
  }
  mark();
}

// Marks what matches of what is zoomed to, and says how wide it is, overlaps counted once.
function mark() {
  let [sum, end] = [0, -1];
  for (const box of boxes) {
    const hit = pattern !== null && box.shown === "upon" && pattern.test(box.words);
    box.rect.setAttribute("class", hit ? "match" : "");
    if (hit && box.x >= end) {
      sum += box.w;
      end = box.x + box.w;
    }
  }
  search.textContent = pattern === null ? "Search" : "Reset Search";
  search.setAttribute("class", pattern === null ? "" : "show");
  matched.textContent = pattern === null ? " " : `Matched: ${+((100 * sum) / zoomed.w).toFixed(1)}%`;
}

function find(words) {
  try {
    pattern = words ? new RegExp(words) : null;
  } catch (error) {
    details.textContent = error.message;
    return;
  }
  mark();
  remember();
}

function zoom(box) {
  zoomed = box;
  draw();
  remember();
}

function remember() {
  const state = new URLSearchParams();
  if (zoomed !== boxes[0]) {
    state.set("x", zoomed.x);
    state.set("level", zoomed.level);
  }
  if (pattern !== null) state.set("s", pattern.source);
  try {
    history.replaceState(null, "", state.size ? `?${state}` : location.pathname);
  } catch {
    // A document without an address of its own has none to change.
  }
}

function ask() {
  if (pattern !== null) find("");
  else find(prompt("Search for (a regular expression, as ^main)", ""));
}

const boxOf = (target) => boxes.find((box) => box.group === target.parentNode);
window.addEventListener("click", ({ target }) => {
  const box = boxOf(target);
  if (box) zoom(box);
  else if (target === unzoom) zoom(boxes[0]);
  else if (target === search) ask();
});
window.addEventListener("mouseover", ({ target }) => {
  details.textContent = boxOf(target)?.words ?? " ";
});
window.addEventListener("keydown", (event) => {
  if (event.key === "F3" || (event.ctrlKey && event.key === "f")) {
    event.preventDefault();
    ask();
  }
});
window.addEventListener("resize", draw);

svg.removeAttribute("width");
svg.removeAttribute("viewBox");
const state = new URLSearchParams(location.search);
zoomed = boxes.find((box) => box.x === Number(state.get("x")) && box.level === Number(state.get("level"))) ?? boxes[0];
try {
  pattern = state.get("s") ? new RegExp(state.get("s")) : null;
} catch {
  pattern = null;
}
draw();
});
