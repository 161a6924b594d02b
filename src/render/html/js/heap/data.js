// A heap report inside the page (src/render/html/heap.rs): the stacks of a process by column.

for (const process of report.processes) {
  const { count: n, ...raw } = process.sites;
  // unpack() has nothing to do
  process.table = { n };
  for (const [name, from] of Object.entries(raw)) process.table[name] = column(from, n, Float64Array);
}

const sum = (numbers) => numbers.reduce((all, each) => all + Math.max(0, each), 0);
/** `~` where figures are estimates. */
const about = report.sampling_bytes === null ? "" : "~ ";
const isKnown = (p, name) => p.table[name].some((each) => each >= 0);
