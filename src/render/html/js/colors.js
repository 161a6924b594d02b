/** Of a category, the same in each report and in both schemes. */
const color = (id) => report.colors[id] || "#808080";

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
