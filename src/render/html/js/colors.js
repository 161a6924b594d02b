// One colour a category, the same in each report and in both schemes: all are at least 3:1 against
// white and against the dark background. Families share a hue, neighbours differ in lightness, too.

const COLORS = {
  "glibc-arena": "#1c6fb8", "glibc-main-heap": "#3f98dc", "glibc-mmapped": "#5a67d0",
  "thread-stack": "#a878dd", "main-stack": "#8a55c4",
  "jemalloc": "#de7a16", "tcmalloc": "#c85f1a", "mimalloc": "#b5840f", "musl-malloc": "#a8742c",
  "jvm-heap": "#12978a", "jvm-metaspace": "#3b8f45", "jvm-code-cache": "#7d9a1e", "jvm-other": "#5c9484",
  "go-heap": "#1597b5", "v8": "#5f9a34", "python-arena": "#b08a0c", "sanitizer-shadow": "#a3547c",
  "loader": "#748296", "file": "#a08a70", "shared-anon": "#d4608f", "sysv-shm": "#b84a82",
  "hugetlb": "#bf4a66", "kernel": "#5b6878", "app-mmap": "#bb8a12", "unknown": "#d2402f",
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

/** What canvases need of the style sheet, in the scheme that is on. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return { card: get("--card"), ink: get("--ink"), muted: get("--muted"), line: get("--line"), accent: get("--accent") };
}
