// Findings: what is unused, why, and what to change.

/** Findings shown at first. */
const SHOWN = 8;

on("process", (p) => {
  const list = h("ol", { class: "findings" }, p.findings.slice(0, SHOWN).map((f, i) => finding(p, f, i)));
  const rest = p.findings.slice(SHOWN);
  const word = residencyUnknown(p) ? "mapped" : "unused";
  const bytes = rest.reduce((sum, f) => sum + f.unused, 0);
  const more = h("button", {
    type: "button", class: "wide",
    onclick: () => {
      list.append(...rest.map((f, i) => finding(p, f, i + SHOWN)));
      more.remove();
      list.children[SHOWN].querySelector("h3").focus();
    },
  }, `Show ${thousands(rest.length)} smaller ones, ${size(bytes)} ${word} together`);
  $("findings").replaceChildren(
    h("h2", { id: "findings-title" }, "Findings"),
    p.findings.length ? list : h("p", { class: "card hint" }, "None: what is mapped is in use."),
    ...(rest.length ? [more] : []),
    ...touchCard(p));
});

/** What the figure of a finding is. */
function wordOf(p, f) {
  if (residencyUnknown(p)) return "mapped";
  return f.residency_unknown ? "unused or not known" : "unused";
}

function finding(p, f, at) {
  const word = wordOf(p, f);
  const places = placesOf(f);
  const where = places.start.length === 1 ? `${hex(places.start[0])}-${hex(places.end[0])}` : `${thousands(places.start.length)} places`;
  const whose = threadsText(f.threads);
  return h("li", { class: "card finding", id: `finding-${at + 1}`, style: { "--c": color(f.category) } },
    h("header", {},
      h("h3", { tabindex: "-1" }, h("span", { class: "number" }, String(at + 1)), h("span", { class: "amount" }, `${size(f.unused)} ${word}`), f.title),
      h("p", { class: "hint" }, [whose, `VIRT ${size(f.virt)}`, residencyUnknown(p) ? null : `RSS ${size(f.rss)}`].filter(Boolean).join(" · "), " · ",
        h("button", { type: "button", class: "link mono", onclick: (event) => showRegion(Math.max(0, regionAt(p.table, places.start[0])), event.currentTarget) }, where))),
    f.why ? h("p", { class: "why" }, f.why) : null,
    f.doubtful ? h("p", { class: "doubt" }, "Events were lost: the origin of some of it may be wrong.") : null,
    f.fix.map(fixBox), (f.no_help ?? []).map(noHelpBox),
    f.story ? h("p", { class: "story mono" }, f.story + (f.regions > 1 ? ` (the largest of ${thousands(f.regions)} such)` : "")) : null,
    f.stack !== null ? h("details", { open: at < 1 }, h("summary", {}, `Call stack: ${callerOf(f.stack)}`), stackList(f.stack)) : null,
    p.attached && f.preexisting ? h("p", { class: "hint" }, f.preexisting >= f.virt ? "Mapped before vmaudit attached: no stack." : `${size(f.preexisting)} of it were mapped before vmaudit attached: no stack.`) : null,
    touchedBy(f), partsTable(f));
}

function threadsText(threads) {
  if (!threads.length) return "";
  const name = threads[0].comm && threads.every((t) => t.comm === threads[0].comm) ? ` “${threads[0].comm}”` : "";
  const shown = threads.slice(0, 4).map((t) => t.tid).join(", ");
  const more = threads.length > 4 ? ` and ${thousands(threads.length - 4)} more` : "";
  return `${threads.length === 1 ? "thread" : "threads"} ${shown}${more}${name}`;
}

function fixBox(fix) {
  const saves = [fix.saves_virt && `${size(fix.saves_virt)} of VIRT`, fix.saves_rss && `${size(fix.saves_rss)} of RSS`].filter(Boolean);
  const said = saves.length ? `saves up to ${saves.join(", ")}${fix.saves_rss ? "" : ", no RSS"}` : "";
  return h("div", { class: "fix" }, h("span", { class: "tag" }, "fix"), h("div", {},
    h("p", {}, h("code", {}, fix.knob), said ? h("span", { class: "saves" }, said) : null),
    fix.note ? h("p", { class: "hint" }, fix.note) : null));
}

function noHelpBox(no) {
  return h("div", { class: "fix no" }, h("span", { class: "tag" }, "no help"), h("div", {},
    h("p", {}, h("code", {}, no.knob)), h("p", { class: "hint" }, no.why)));
}

function touchedBy(f) {
  if (!f.touched_by || !f.touched_by.length) return null;
  const line = (share) => h("li", {}, h("span", { class: "amount" }, size(share.bytes_estimate)),
    share.stack === null || share.stack === undefined ? (share.seen ? "by a stack that is not known" : "without a fault that was seen") : `by ${callerOf(share.stack)}`);
  return h("details", {}, h("summary", {}, "Who made it resident"), h("ul", { class: "shares" }, f.touched_by.map(line)));
}

function partsTable(f) {
  if (f.parts.length < 2) return null;
  return h("details", {}, h("summary", {}, `${f.parts.length} parts`), h("table", { class: "small" },
    h("thead", {}, h("tr", {}, ["part", "VIRT", "RSS", "unused"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, f.parts.map((part) => h("tr", {}, h("th", { scope: "row" }, part.name), [part.virt, part.rss, part.unused].map((bytes) => h("td", {}, size(bytes))))))));
}
