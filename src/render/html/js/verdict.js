// Does VIRT matter here, why is it what it is, and what counts it.

/** The report's verdict, and the findings that explain most. */
function verdict(p) {
  const v = p.verdict;
  return h("div", { class: "verdict" },
    v ? h("p", { class: "headline", "data-state": v.matters ? "near" : "free" },
      h("span", { class: "sign", "aria-hidden": "true" }, v.matters ? "!" : "✓"), v.text) : null,
    causes(p));
}

function causes(p) {
  const top = p.findings.slice(0, 3);
  const lead = top.reduce((sum, f) => sum + f.unused, 0);
  const words = residencyUnknown(p) ? "What is in memory is not known; the largest reservations are:"
    : !top.length ? "Nothing worth a finding: what is mapped is in use."
    : `${percent(p.totals.unused, p.totals.virt)} of the address space is not in memory. ` +
      (top.length < p.findings.length ? `${count(top.length, "finding")} explain ${percent(lead, p.totals.unused)} of it:` : "This is why:");
  return [h("p", { class: p.verdict ? "causes" : "headline" }, words),
    h("ol", {}, top.map((f, i) => h("li", {}, h("a", { href: `#finding-${i + 1}`, class: "cause" },
      h("span", { class: "amount" }, size(f.unused)), swatch(f.category), h("span", {}, f.title)),
    f.fix.length ? h("span", { class: "knob" }, f.fix[0].knob) : null)))];
}

const CHECKS = {
  "address-space": "RLIMIT_AS", "data": "RLIMIT_DATA", "overcommit": "Overcommit", "mappings": "Mappings",
  "cgroup-memory": "Memory limit", "page-tables": "Page tables", "huge-pages": "Huge pages",
};
const STATES = { free: "harmless", limited: "limited", near: "near its limit, or to be checked" };

/** What the kernel counts, and how far each is from its limit. A card, or nothing. */
function checksCard(p) {
  if (!p.verdict || !p.verdict.checks.length) return [];
  const row = (check) => {
    const part = check.limit ? Math.min(100, (100 * check.used) / check.limit) : 0;
    return h("li", { "data-state": check.state },
      h("p", {}, h("span", { class: "dot", title: STATES[check.state] || check.state }), h("strong", {}, CHECKS[check.id] || check.id),
        h("span", { class: "sr" }, `, ${STATES[check.state] || check.state}`), check.counts_virt ? null : h("span", { class: "hint" }, " counts what is resident")),
      check.limit ? h("div", { class: "gauge", "aria-hidden": "true" }, h("span", { style: { width: `${Math.max(1, part)}%` } })) : null,
      h("p", { class: "hint" }, check.text));
  };
  return [h("div", { class: "card" }, h("h2", {}, "What counts it"), h("ul", { class: "checks" }, p.verdict.checks.map(row)))];
}
