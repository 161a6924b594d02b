// Which regions match what was typed: each word has to be somewhere (name, part, file, thread,
// protection, function on the stack, address).

/** Indices of matching regions, ascending; null for all. `only` is null or a Set of stacks. */
function matching(p, typed, category, only) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length && !category && !only) return null;
  const { table } = p;
  const tests = words.map((word) => wordTest(p, word));
  const found = [];
  for (let i = 0; i < table.n; i++) {
    if (category && text(table.category[i]) !== category) continue;
    if (only && !only.has(table.stack[i])) continue;
    if (tests.every((test) => test(i))) found.push(i);
  }
  return found;
}

function wordTest({ table }, word) {
  const hits = strings.map((each) => each.toLowerCase().includes(word));
  const names = strings.map((each) => (report.names[each] || "").toLowerCase().includes(word));
  const hit = (number) => number >= 0 && hits[number];
  // frames by module and name, not by file: "src" would match everything
  const stacks = report.stacks.map(([, frames]) => frames.some((f) => hit(frameColumns.name[f]) || hit(frameColumns.module[f])));
  const number = /^\d+$/.test(word) ? Number(word) : -1;
  const address = /^(0x)?[0-9a-f]{3,16}$/.test(word) ? parseInt(word.replace(/^0x/, ""), 16) : -1;
  const prefix = word.startsWith("0x") ? word : "";
  return (i) => hit(table.category[i]) || names[table.category[i]] || hit(table.part[i]) || hit(table.path[i]) || hit(table.prot[i])
    || hit(table.comm[i]) || hit(table.op[i]) || hit(table.evidence[i]) || hit(table.doubt[i])
    || (table.stack[i] >= 0 && stacks[table.stack[i]])
    || (number > 0 && (table.tid[i] === number || table.thread[i] === number))
    || (address > 0 && table.start[i] <= address && address < table.end[i])
    || (prefix !== "" && hex(table.start[i]).startsWith(prefix));
}
