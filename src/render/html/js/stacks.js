// Call stacks.

const { count: frameCount, ...rawFrames } = report.frames;
const frameColumns = Object.fromEntries(Object.entries(rawFrames).map(([name, from]) =>
  [name, column(from, frameCount, name === "offset" || name === "line" ? Float64Array : Int32Array)]));

/** A frame by its number. */
function frame(number) {
  const of = (name) => frameColumns[name][number];
  const flags = of("flags");
  return {
    module: text(of("module")), name: text(of("name")), offset: of("offset"), file: text(of("file")),
    line: of("line"), inlined: !!(flags & 1), guess: !!(flags & 2), named: !!(flags & 4), wrapper: !!(flags & 8),
  };
}

/** `malloc+0x11e`, `fn@0x954f0+0x125`, `+0x95615`; without an offset where the line is known. */
function frameText(f) {
  const offset = f.named ? f.offset > 0 && f.line < 0 && !f.inlined : f.offset >= 0;
  return f.name + (offset ? `+${hex(f.offset)}` : "") + (f.inlined ? " (inlined)" : "") + (f.guess ? " (guess)" : "");
}

/** `lauxlib.c:742` */
function framePlace(f) {
  return f.file ? baseName(f.file) + (f.line >= 0 ? `:${f.line}` : "") : "";
}

/** Numbers of the frames of a stack, innermost first; the system call's wrapper only once. */
function framesOf(stack) {
  const [, frames] = report.stacks[stack];
  let aliases = 0;
  while (aliases < frames.length && frame(frames[aliases]).inlined) aliases++;
  const wrapped = aliases < frames.length && frame(frames[aliases]).wrapper;
  return wrapped ? frames.slice(aliases) : frames;
}

const ENDINGS = {
  truncated: "the stack goes on: it was not copied further",
  incomplete: "the stack goes on: no unwind information here",
};
/** Frames shown of a long stack at first. */
const [INNER, OUTER] = [9, 4];

/** A stack as a list; of a long one the middle is opened by a button. */
function stackList(stack) {
  const frames = framesOf(stack);
  const row = (number) => {
    const f = frame(number);
    return h("li", { title: f.file || null }, h("span", { class: "module" }, f.module),
      h("span", { class: "function" }, frameText(f)), h("span", { class: "place" }, framePlace(f)));
  };
  const list = h("ol", { class: "stack", "aria-label": "Call stack, innermost first" });
  const hidden = frames.length - INNER - OUTER;
  if (hidden > 1) {
    const middle = frames.slice(INNER, INNER + hidden);
    const more = h("li", { class: "more" }, h("button", {
      type: "button", class: "link",
      onclick: () => more.replaceWith(...middle.map(row)),
    }, `… ${hidden} frames more …`));
    list.append(...frames.slice(0, INNER).map(row), more, ...frames.slice(-OUTER).map(row));
  } else {
    list.append(...frames.map(row));
  }
  const ending = ENDINGS[report.stacks[stack][0]];
  if (ending) list.append(h("li", { class: "ending" }, ending));
  return list;
}

/** The function that a reader would name as the caller: outside the C library and the allocator. */
function callerOf(stack) {
  const [, frames, caller] = stack < 0 ? [] : report.stacks[stack];
  return caller >= 0 ? frame(frames[caller]).name : "";
}
