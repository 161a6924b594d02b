// One colour a category, the same in each report and in both schemes: all have at least 3:1 against
// white and against the dark background. Those that occur in one process were chosen to be told apart
// (CIELAB distance 18 and more) with normal sight, deuteranopia and protanopia (Machado et al. 2009).

const COLORS = {
  "glibc-arena": "#2b6ba5", "glibc-main-heap": "#5a99d2", "glibc-mmapped": "#5551eb",
  "thread-stack": "#a272ef", "main-stack": "#8a55c4",
  "jemalloc": "#db7b11", "tcmalloc": "#c85f1a", "mimalloc": "#b5840f", "musl-malloc": "#a8742c",
  "jvm-heap": "#14a181", "jvm-metaspace": "#1ca752", "jvm-code-cache": "#929811", "jvm-other": "#486d70",
  "go-heap": "#0f6f93", "v8": "#5f9a34", "python-arena": "#837325", "sanitizer-shadow": "#a3547c",
  "loader": "#8695ac", "file": "#7f644d", "shared-anon": "#c52659", "sysv-shm": "#bb2e79",
  "hugetlb": "#cd3337", "kernel": "#596982", "app-mmap": "#836217", "unknown": "#ea6e51",
};
/** For categories that came later than this page. */
const MORE = ["#2f8fa8", "#9b7a2f", "#8c6bb5", "#b3604a", "#4f8f5f", "#a8588f"];

function color(id) {
  if (COLORS[id]) return COLORS[id];
  let sum = 0;
  for (const c of id) sum = (sum * 31 + c.codePointAt(0)) % 9973;
  return MORE[sum % MORE.length];
}

/** `amount` of one colour over another, both `#rrggbb`. */
function mix(over, under, amount) {
  const parts = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const below = parts(under);
  const mixed = parts(over).map((c, i) => Math.round(c * amount + below[i] * (1 - amount)));
  return "#" + mixed.map((c) => c.toString(16).padStart(2, "0")).join("");
}

/** Black or white, whichever reads better on a `#rrggbb`. */
function inkOn(ground) {
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt(ground.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.19 ? "#10131a" : "#ffffff";
}

/** What canvases need of the style sheet, in the scheme that is on. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return { card: get("--card"), ink: get("--ink"), muted: get("--muted"), line: get("--line"), accent: get("--accent") };
}
