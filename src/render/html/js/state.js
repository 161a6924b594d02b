// What is shown, and the listeners for its changes.

const state = {
  /** The process on show. */
  process: null,
  /** Index of the region whose life is on show; -1: none. */
  region: -1,
  /** Id of the category that stands out; "": none. */
  category: "",
};
const listeners = { process: [], region: [], category: [], theme: [], regionsOf: [] };

const on = (what, listener) => listeners[what].push(listener);
const emit = (what, ...details) => listeners[what].forEach((listener) => listener(...details));

function showProcess(process) {
  state.process = unpack(process);
  state.region = -1;
  state.category = "";
  emit("process", state.process);
}

/** `from` is who has the focus back when the panel closes. */
function showRegion(index, from) {
  state.region = index;
  emit("region", index, from || null);
}

function showCategory(id) {
  state.category = state.category === id ? "" : id;
  emit("category", state.category);
  say(state.category ? `${categoryName(id)} stands out` : "All categories");
}
