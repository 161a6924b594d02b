// Elements. All text from the report goes through text nodes: nothing in it can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** A new element; `on…` are listeners, `style` an object, a child that is null is left out. */
function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** As h, for the inside of an <svg>. */
function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "style") {
      for (const [name, each] of Object.entries(value)) if (each !== null) node.style.setProperty(name, each);
    } else if (key.startsWith("on")) {
      node.addEventListener(key.slice(2), value);
    } else {
      node.setAttribute(key, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const $ = (id) => document.getElementById(id);

/** Announces to screen readers, when they are idle. */
function say(text) {
  $("say").textContent = text;
}

/** A choice of one of several, as buttons: `options` are [value, label, title]. */
function choice(label, options, chosen, change) {
  const buttons = options.map(([value, name, title]) =>
    h("button", { type: "button", role: "radio", "data-value": value, title, onclick: () => choose(value, true) }, name));
  const choose = (value, notify) => {
    for (const button of buttons) {
      const is = button.dataset.value === value;
      button.setAttribute("aria-checked", String(is));
      button.tabIndex = is ? 0 : -1;
    }
    if (notify) change(value);
  };
  const step = (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = buttons.indexOf(document.activeElement);
    const next = buttons[(at + by + buttons.length) % buttons.length];
    next.focus();
    choose(next.dataset.value, true);
  };
  choose(chosen, false);
  return h("div", { class: "choice", role: "radiogroup", "aria-label": label, onkeydown: step }, buttons);
}

/** A coloured square of a category. */
function swatch(category) {
  return h("span", { class: "swatch", "aria-hidden": "true", style: { "--c": color(category) } });
}

/** A canvas in device pixels; returns its context and its size in CSS pixels. */
function fit(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const [w, t] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== t) {
    canvas.width = w;
    canvas.height = t;
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return [g, width, height];
}

/** A box next to the pointer; hidden without lines. */
function tip(event, lines) {
  const box = $("tip");
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.filter(Boolean).map((line, at) => h("div", { class: at ? "" : "first" }, line)));
  const x = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
  const below = event.clientY + 18;
  const y = below + box.offsetHeight > window.innerHeight ? event.clientY - box.offsetHeight - 12 : below;
  box.style.left = `${Math.max(8, x)}px`;
  box.style.top = `${Math.max(8, y)}px`;
}
