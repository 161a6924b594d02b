// The top of the page: whose heap, how much, and what it costs in memory.

function endOf(p) {
  if (p.signal !== null) return `killed by signal ${p.signal}`;
  return p.exit_code !== null ? `exited ${p.exit_code}` : "still running";
}

const WAYS = { runtime: "the runtime's own record", preload: "counted in the program by a preloaded library", bpf: "counted by uprobes" };

function factsOf(p) {
  return [
    `pid ${p.pid}`,
    endOf(p) + (p.watched_ns === null ? "" : `, watched for ${duration(p.watched_ns)}`),
    p.container ? `container ${p.container}` : null,
    WAYS[report.backend] || `counted by ${report.backend}`,
    report.sampling_bytes === null ? "every allocation" : `sampled: one mark every ${size(report.sampling_bytes)}`,
    report.backend === "runtime" ? null : `${thousands(report.events.lost)} lost`,
  ].filter(Boolean);
}

on("process", (p) => {
  $("overview").replaceChildren(
    h("div", { class: "head" },
      h("h1", { id: "title" }, p.comm || "unnamed process"),
      h("ul", { class: "facts" }, factsOf(p).map((fact) => h("li", {}, fact))),
      p.cmdline.length ? h("p", { class: "command", title: p.exe }, p.cmdline.join(" ")) : null),
    h("div", { class: "card hero" }, figures(p), p.nothing_seen ? h("p", { class: "doubt" }, `No allocation was seen: ${p.nothing_seen.why}`) : null, notesList(p)),
    ...besideCard(p), ...arenasCards(p));
});

function figures(p) {
  const t = p.totals;
  const figure = (name, value, note, kind) => h("div", { class: `figure ${kind || ""}` },
    h("dt", {}, name), h("dd", {}, h("strong", {}, value), h("span", {}, note)));
  const rounding = p.sizes ? p.sizes.reduce((all, each) => all + each.rounding, 0) : 0;
  const error = p.shown.standard_error ? ` ± ${size(p.shown.standard_error)}` : "";
  return h("dl", { class: "figures" },
    figure("outstanding", size(t.outstanding_bytes), `${about}${count(t.outstanding_blocks, "block")}${error}`, "unused"),
    t.peak_bytes === null ? null : figure("peak", size(t.peak_bytes), `at ${moment(t.peak_ns)}`),
    figure("allocated", size(t.allocated_bytes), `${about}${count(t.allocations, "call")}`, "writable"),
    figure("freed", size(t.freed_bytes), `${about}${count(t.frees, "block")}`, "writable"),
    t.temporary ? figure("temporary", thousands(t.temporary), `calls, ${percent(t.temporary, t.allocations)}: freed before the thread's next`, "writable") : null,
    rounding ? figure("rounding", size(rounding), "at least, beyond what was requested", "writable") : null,
    p.left_out.blocks ? figure("left out", size(p.left_out.bytes), "by the filter: not in the stacks below", "writable") : null);
}

function notesList(p) {
  return p.notes.length ? h("ul", { class: "notes" }, p.notes.map((text) => h("li", {}, text))) : null;
}

/** From what is requested to what is mapped. */
function besideCard(p) {
  const found = p.beside;
  if (!found) return [];
  const row = (bytes, name, why, strong) => h("tr", {}, h("td", {}, strong ? h("strong", {}, bytes) : bytes), h("th", { scope: "row" }, name), h("td", { class: "words" }, why));
  const signed = (bytes) => (bytes < 0 ? "−" : "+") + size(Math.abs(bytes));
  const untouched = (each) => each.id === "untouched";
  const rows = (matches) => found.differences.filter(matches).map((each) => row(signed(each.bytes), each.name, each.why, false));
  const names = found.parts.map((part) => part.name).join(", ");
  return [h("div", { class: "card beside" }, h("h2", {}, "Compared with the mappings"), h("div", { class: "scroll" }, h("table", { class: "way" }, h("tbody", {},
    row(size(found.asked), "requested", found.asked_incomplete ? "outstanding, of what was allocated since vmaudit attached" : "outstanding", true),
    rows((each) => !["untouched", "swapped", "purged"].includes(each.id)),
    row(size(found.resident), "resident", "of the allocator's mappings (RSS)", true),
    rows((each) => ["swapped", "purged"].includes(each.id)), rows(untouched),
    row(size(found.mapped), "mapped", names, true)))))];
}
