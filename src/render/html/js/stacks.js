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
    line: of("line"), inlined: !!(flags & 1), guess: !!(flags & 2), named: !!(flags & 4),
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

const WRAPPER = /^_*(GI_+)?(mmap|mremap|brk|sbrk|munmap|mprotect|madvise|shmat)/;

/** Numbers of the frames of a stack, innermost first; the system call's wrapper only once. */
function framesOf(stack) {
  const [, frames] = report.stacks[stack];
  let aliases = 0;
  while (aliases < frames.length && frame(frames[aliases]).inlined) aliases++;
  const wrapped = aliases < frames.length && WRAPPER.test(frame(frames[aliases]).name);
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

/** Not whom a reader would name. */
const PLUMBING = /^(libc\.so|libc-|ld-linux|libpthread|\[)/;
/** Where programs enter an allocator: whoever calls it is who asked. */
const ENTRY = /^(je_|mi_|tc_|__libc_|__GI_)?_?_?(malloc|calloc|realloc|reallocarray|memalign|aligned_alloc|posix_memalign|valloc|free|cfree|mallocx|rallocx|operator new.*|operator delete.*)(\.\w+|_default)?(\(.*)?$/;

const callers = new Map();

/** The function that a reader would name as the caller: outside the C library and the allocator. */
function callerOf(stack) {
  if (stack < 0) return "";
  if (!callers.has(stack)) callers.set(stack, findCaller(stack));
  return callers.get(stack);
}

function findCaller(stack) {
  const frames = framesOf(stack).map(frame);
  let entry = frames.length - 1;
  while (entry >= 0 && !ENTRY.test(frames[entry].name)) entry--;
  const outside = frames.slice(entry + 1);
  const named = (each) => each.named && !PLUMBING.test(each.module);
  const f = outside.find(named) || frames.find(named) || frames.find((each) => each.named) || frames[0];
  return f ? f.name : "";
}
