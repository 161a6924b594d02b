// What the tables of stacks have in common: of one heap (table.js), and of two (diff.js).

/** Rows shown at first, and with each "more". */
const MANY = 40;
/** The column that is sorted by, how many rows are shown, and what was searched for. */
const sites = { by: "", up: false, shown: MANY, typed: "" };

const signed = (n, write) => (n === 0 ? "0" : (n < 0 ? "−" : "+") + write(Math.abs(n)));

/** All names of a stack. */
const namesOf = (stack) => framesOf(stack).map(frame).map((f) => `${f.name} ${f.module} ${f.file}`);

function placeSites(draw) {
  $("sites").replaceChildren(
    h("div", { class: "title" }, h("h2", { id: "sites-title" }, "Stacks"),
      h("div", { class: "tools" }, h("input", {
        id: "sites-search", type: "search", placeholder: "Functions, files, modules", "aria-label": "Search the stacks", autocomplete: "off", spellcheck: "false",
        oninput: (event) => { Object.assign(sites, { typed: event.target.value, shown: MANY }); draw(); },
      }))),
    h("div", { class: "card" }, h("p", { id: "sites-line", class: "line" }), h("div", { id: "sites-table", class: "scroll" })));
  draw();
}

/** The head of a column, which sorts by it. */
const sortedBy = (draw) => ([name, label]) => h("th", { scope: "col", "aria-sort": sites.by === name ? (sites.up ? "ascending" : "descending") : null },
  h("button", { type: "button", class: "link", onclick: () => {
    sites.up = sites.by === name && !sites.up;
    sites.by = name;
    draw();
  } }, label + (sites.by === name ? (sites.up ? " ↑" : " ↓") : "")));

/** A table of what was found, cut after what is shown. */
function fillSites(found, [head, row, foot], draw) {
  const rest = found.length - sites.shown;
  $("sites-table").replaceChildren(
    h("table", { class: "sites" },
      h("thead", {}, h("tr", {}, head, h("th", { scope: "col", class: "who" }, "who called the allocator"))),
      h("tbody", {}, found.slice(0, sites.shown).map(row)),
      h("tfoot", {}, h("tr", {}, foot))),
    rest > 0 ? h("button", { type: "button", class: "wide", onclick: () => { sites.shown += 5 * MANY; draw(); } }, `Show more of ${count(rest, "other stack")}`) : "");
}

/** A row whose button opens another one below it. */
function openedBy(who, make, within) {
  const button = h("button", { type: "button", class: "link mono who", "aria-expanded": "false", onclick: () => toggle() }, who);
  const row = within(button);
  let opened = null;
  const toggle = () => {
    button.setAttribute("aria-expanded", String(!opened));
    if (opened) {
      opened.remove();
      opened = null;
      return;
    }
    opened = h("tr", { class: "opened" }, make());
    row.after(opened);
  };
  return row;
}
