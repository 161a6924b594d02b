// The report inside the page (src/render/html/compact.rs), unpacked.

const report = JSON.parse($("data").textContent);
const { strings } = report;

/** A column as numbers: it is one number for all rows, or an array. */
function column(from, rows, to) {
  if (Array.isArray(from)) return to.from(from);
  return new to(rows).fill(from);
}

/** A text by its number; -1 is none. */
const text = (number) => (number < 0 ? "" : strings[number]);

/** Starts and ends of ranges, in bytes. */
function ranges({ unit, gap, length }, rows) {
  const [start, end] = [column(gap, rows, Float64Array), column(length, rows, Float64Array)];
  let last = 0;
  for (let i = 0; i < rows; i++) {
    start[i] = last + start[i] * unit;
    last = end[i] = start[i] + end[i] * unit;
  }
  return { start, end };
}

/** Differences to sums. */
function summed(numbers) {
  for (let i = 1; i < numbers.length; i++) numbers[i] += numbers[i - 1];
  return numbers;
}

/** A process with its regions as columns, unpacked at its first use. */
function unpack(process) {
  if (process.table) return process;
  const raw = process.regions;
  const n = raw.count;
  const of = (name) => column(raw[name], n, Int32Array);
  const bytes = (name) => column(raw[name], n, Float64Array).map((pages) => pages * raw.size_unit);
  const { start, end } = ranges(raw.at, n);
  const virt = end.map((to, i) => to - start[i]);
  const [rss, swap] = [bytes("rss"), bytes("swap")];
  const table = { n, start, end, virt, rss, swap, unused: virt.map((all, i) => Math.max(0, all - rss[i] - swap[i])) };
  for (const name of ["prot", "category", "evidence", "path", "part", "thread", "doubt", "op", "tid", "comm",
    "stack", "inherited_from"]) {
    table[name] = of(name);
  }
  table.instance = summed(of("instance"));
  table.event = summed(column(raw.event, n, Float64Array));
  table.time = summed(column(raw.time_ns, n, Float64Array)).map((ns) => ns - (process.zero_ns || 0));
  process.table = table;
  process.regions = null;
  process.findings.forEach((finding, i) => { finding.at = finding.at || process.ranges[i]; });
  return process;
}

/** Starts and ends of a finding. */
function placesOf(finding) {
  const { gap, length } = finding.at;
  const rows = Array.isArray(gap) ? gap.length : Array.isArray(length) ? length.length : 1;
  return ranges(finding.at, rows);
}

/** The region that holds an address, or -1. */
function regionAt(table, address) {
  const after = firstAfter(table.start, address);
  return after > 0 && address < table.end[after - 1] ? after - 1 : -1;
}

/** Index of the first number of a sorted array that is greater. */
function firstAfter(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1; else high = middle;
  }
  return low;
}

const categoryName = (id) => report.names[id] || id;
const isReserved = (table, i) => text(table.prot[i]).startsWith("---");
const isWritable = (table, i) => text(table.prot[i])[1] === "w";
/** What is in memory is not known. */
const residencyUnknown = (process) => process.residency === "none";

/** What a region is, in a few words. */
function regionLabel(table, i) {
  const path = text(table.path[i]);
  const part = text(table.part[i]);
  if (path && !path.startsWith("[anon")) return baseName(path);
  return part || categoryName(text(table.category[i]));
}
