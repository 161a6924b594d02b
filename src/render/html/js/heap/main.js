// Puts it together.

let resized = 0;
new ResizeObserver(() => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => { if (state.process) drawFlame(); });
}).observe($("flame"));

if (report.processes.length > 1) {
  const select = $("process");
  report.processes.forEach((p, i) => select.append(h("option", { value: i }, `${p.comm || "unnamed"} (${p.pid}) · ${size(p.totals.outstanding_bytes)}`)));
  select.addEventListener("change", () => showProcess(report.processes[select.value]));
  on("process", (p) => { select.value = report.processes.indexOf(p); });
  $("chooser").hidden = false;
}

if (report.processes.length) {
  showProcess(report.processes[0]);
} else {
  $("overview").replaceChildren(h("h1", { id: "title" }, "No process was observed"));
  for (const id of ["flame", "sites", "groups"]) $(id).hidden = true;
}
