// Puts it together.

const SCHEMES = { auto: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };

/** Storage may be forbidden for files. */
function stored(value) {
  try {
    if (value) localStorage.setItem("vmaudit-scheme", value);
    return localStorage.getItem("vmaudit-scheme");
  } catch {
    return null;
  }
}

function setScheme(scheme, told) {
  const known = SCHEMES[scheme] ? scheme : "auto";
  document.documentElement.dataset.scheme = known;
  const [sign, name] = SCHEMES[known];
  const button = $("theme");
  button.replaceChildren(h("span", { "aria-hidden": "true" }, sign));
  button.setAttribute("aria-label", `Colours: ${name}. Change`);
  button.title = `Colours: ${name}`;
  if (told) {
    stored(known);
    emit("theme");
    say(`Colours: ${name}`);
  }
}

$("theme").addEventListener("click", () => {
  const all = Object.keys(SCHEMES);
  setScheme(all[(all.indexOf(document.documentElement.dataset.scheme) + 1) % all.length], true);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => emit("theme"));

// the window, or the panel beside the page
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

setScheme(stored() || "auto", false);

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

if (typeof IntersectionObserver === "function") {
  const links = new Map([...document.querySelectorAll("#nav a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-30% 0px -65% 0px" });
  links.forEach((_, id) => watch.observe($(id)));
}
