// With --touch: which stacks made resident what others had reserved.

/** Rows shown at most. */
const TOUCH_ROWS = 12;
const RESERVED = { preexisting: "mapped before tracing began", kernel: "the kernel", unknown: "not known" };

/** A card, or nothing. */
function touchCard(p) {
  const { touch } = p;
  if (!touch || !touch.rows.length) return [];
  const known = (stack) => stack !== null && stack !== undefined;
  const stackCell = (stack, otherwise) => (known(stack)
    ? h("td", { class: "words" }, h("details", {}, h("summary", {}, callerOf(stack)), stackList(stack)))
    : h("td", { class: "words" }, otherwise));
  const row = (each) => h("tr", {}, h("td", {}, size(each.bytes_estimate)), h("td", {}, thousands(each.faults)),
    h("td", { class: "words" }, each.category ? [swatch(each.category), categoryName(each.category)] : "mapped no longer"),
    stackCell(each.reserved_by, RESERVED[each.reserved] || "a call without its stack"),
    stackCell(each.touched_by, each.seen ? "a stack that is not known" : "no fault was seen"));
  const shown = touch.rows.slice(0, TOUCH_ROWS);
  const left = touch.rows.length - shown.length + touch.others.rows;
  return [h("div", { class: "card touch" }, h("h2", {}, "Who made it resident"),
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["resident", "faults", "what", "reserved by", "touched by"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, shown.map(row)))),
    left ? h("p", { class: "hint" }, `… and ${count(left, "smaller row")}`) : null)];
}
