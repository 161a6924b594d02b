// Light, dark, or as the system.

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

function setScheme(scheme, notify) {
  const known = SCHEMES[scheme] ? scheme : "auto";
  document.documentElement.dataset.scheme = known;
  const [sign, name] = SCHEMES[known];
  const button = $("theme");
  button.replaceChildren(h("span", { "aria-hidden": "true" }, sign));
  button.setAttribute("aria-label", `Colours: ${name}. Change`);
  button.title = `Colours: ${name}`;
  if (notify) {
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

setScheme(stored() || "auto", false);
