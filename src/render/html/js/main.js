// Puts it together.

// the window, or the panel next to the page
let resized = 0;
new ResizeObserver(() => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => {
    if (!state.process || !rows.shown) return;
    drawMap();
    drawRows();
    drawFlame();
  });
}).observe($("map"));

if (report.processes.length > 1) {
  const select = $("process");
  report.processes.forEach((p, i) => select.append(h("option", { value: i }, `${p.comm || "unnamed"} (${p.pid}) · ${size(p.totals.virt)}`)));
  select.addEventListener("change", () => showProcess(report.processes[select.value]));
  on("process", (p) => { select.value = report.processes.indexOf(p); });
  $("chooser").hidden = false;
}

if (report.processes.length) {
  showProcess(report.processes[0]);
} else {
  $("overview").replaceChildren(h("h1", { id: "title" }, "No process was observed"));
  for (const id of ["findings", "map", "regions", "flame"]) $(id).hidden = true;
}
