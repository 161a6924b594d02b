// What the allocators' arenas, extents and segments are, what of them is in memory, and whose blocks keep it there.

function arenasCards(p) {
  const found = p.fragmentation;
  if (!found) return [];
  const cards = [...(found.extents || []).map(extentsCard), ...(found.segments || []).map(segmentsCard)];
  if (found.unread) cards.unshift(h("div", { class: "card" }, words(found.unread.map((each) => `${each.allocator}: ${each.why}`))));
  if (found.arenas.length) {
    const inMemory = found.total.pages && found.total.trim ? arenasInMemory(found) : [];
    const doubts = found.arenas.filter((arena) => arena.why).map((arena) => `arena ${arenaName(found, arena)}: ${arena.why}`);
    cards.push(h("div", { class: "card arenas" }, h("h2", {}, "Arenas"), arenasTable(found), words(doubts), wayTable(inMemory), holdersTable(p, found)));
  }
  return cards;
}

const words = (texts) => (texts.length ? h("ul", { class: "notes" }, texts.map((text) => h("li", {}, text))) : null);

/** `main`, or its number in the allocator's list. */
const arenaName = (found, arena) => (arena.main ? "main" : `#${found.arenas.findIndex((each) => each.address === arena.address)}`);

/** The largest first; with the sum of all, where there are several. */
function sumsTable(head, all, total, nameOf, cellsOf) {
  const cells = (each) => cellsOf(each).map((bytes) => h("td", {}, bytes === null ? "–" : size(bytes)));
  const row = (name, each) => h("tr", {}, h("th", { scope: "row" }, name), cells(each));
  const sorted = all.slice().sort((a, b) => b.mapped - a.mapped);
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, sorted.map((each) => row(nameOf(each), each))),
    all.length > 1 ? h("tfoot", {}, row("total", total)) : null));
}

function arenasTable(found) {
  return sumsTable(["arena", "mapped", "in use", "cached", "free", "top", "resident", "to trim"], found.arenas, found.total,
    (arena) => arenaName(found, arena),
    (arena) => [arena.mapped, arena.in_use, arena.thread_caches + arena.fast, arena.free, arena.top, arena.pages ? arena.pages.resident : null,
      arena.trim ? arena.trim.inside + arena.trim.top : null]);
}

/** Lines of [bytes, name, why, whether it is a sum]; those without bytes are left out. */
function wayTable(lines) {
  const shown = lines.filter(([bytes]) => bytes > 0);
  const row = ([bytes, name, why, strong]) => h("tr", {}, h("td", {}, strong ? h("strong", {}, size(bytes)) : size(bytes)),
    h("th", { scope: "row" }, name), h("td", { class: "words" }, why));
  return shown.length ? h("div", { class: "scroll" }, h("table", { class: "way" }, h("tbody", {}, shown.map(row)))) : null;
}

const knownOf = (known, blocks) => (known
  ? `; ${known.blocks < blocks ? `of ${thousands(known.blocks)} blocks that are known: ` : ""}${size(known.asked)} requested, ${size(known.rounding)} rounding` : "");

function arenasInMemory(found) {
  const { pages, trim } = found.total;
  const large = found.mapped_blocks;
  const sparse = pages.sparse_pages
    ? `; ${thousands(pages.sparse_pages)} of these pages are at most a quarter in use: ${size(pages.sparse_used)} of blocks hold ${size(Math.max(0, pages.sparse_pages * 4096 - pages.sparse_used))}` : "";
  return [
    [pages.resident, "resident", `of ${size(found.total.read)} in arenas`, true],
    [pages.used, "in use", `${count(found.total.in_use_blocks, "block")}${knownOf(found.total.known, found.total.in_use_blocks)}`],
    [trim.inside + trim.top, "malloc_trim(0) frees", `${size(trim.inside)} between blocks, ${size(trim.top)} at the top of the main heap`, true],
    [pages.beside, "free next to blocks", `on the same pages${sparse}`],
    [pages.whole, "free, stays", "whole pages that trimming leaves: around blocks in threads' caches, tops of other arenas"],
    [pages.swapped, "swapped out", "moved to swap by the kernel"],
    [pages.absent, "not in memory", "given back, or never touched"],
    [large.bytes, "large blocks", `${thousands(large.blocks)} with mappings of their own${large.resident === null ? "" : `, ${size(large.resident)} resident`}${knownOf(large.known, large.blocks)}`],
  ];
}

/** The stacks whose blocks keep pages, as many as the page shows at first. */
const HOLDERS = 10;

function holdersTable(p, found) {
  if (!found.holders.length) return null;
  const rows = found.holders.slice(0, HOLDERS).map((each, at) => h("tr", {}, h("td", {}, size(each.kept)), h("td", {}, thousands(each.pages)),
    h("td", {}, thousands(each.blocks)), h("td", {}, size(each.used)), h("td", { class: "words" }, p.holders[at] || "what the filter leaves out")));
  const rest = found.holders.length - rows.length;
  const kept = found.holders.slice(HOLDERS).reduce((all, each) => all + each.kept, 0);
  return h("div", { class: "scroll" }, h("h3", {}, "Whose blocks keep pages that are at most a quarter in use"), h("table", { class: "holders" },
    h("thead", {}, h("tr", {}, ["keeps", "pages", "blocks", "of", "stack"].map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, rows, rest > 0 ? h("tr", {}, h("td", {}, size(kept)), h("td", { colspan: "4", class: "words" }, count(rest, "other stack"))) : null)));
}

/** Of an allocator that keeps runs of pages. */
function extentsCard(heap) {
  const all = heap.total;
  const resident = all.resident + all.purge + all.retained_resident;
  const doubt = heap.doubtful ? [`${thousands(heap.doubtful)} extents changed while they were read, or their descriptions are in swap: they are in no figure`] : [];
  if (heap.profile) doubt.push(heap.profile);
  return h("div", { class: "card extents" }, h("h2", {}, heap.allocator),
    sumsTable(["arena", "mapped", "in use", "inside", "dirty", "muzzy", "retained", "to purge"], heap.arenas, all, (arena) => `arena ${arena.number}`,
      (arena) => [arena.mapped, arena.small + arena.large, arena.inside, arena.dirty, arena.muzzy, arena.retained, arena.purge]),
    words(doubt),
    wayTable([
      [resident, "resident", `of ${size(all.mapped)} in extents`, true],
      [all.resident, "active", `of ${size(all.active)} in extents with blocks`],
      [all.small, "small blocks", `${count(all.small_blocks, "block")}, those included that threads keep for their next calls`],
      [all.large, "large blocks", `${count(all.large_blocks, "block")}, by what can be used of them`],
      [all.inside, "free inside", "free next to small blocks of the same size: purging leaves it"],
      [all.padding, "padding", "of large blocks: a page more than they need"],
      [all.purge, "purging frees", "resident pages of dirty and muzzy extents: arena.4096.purge gives them back now, time does (decay)", true],
      [all.retained_resident, "retained, in memory", "touched since it was given back"],
      [Math.max(0, all.mapped - resident), "not in memory", "given back (retained), or never touched"],
    ]));
}

const OWNERS = { ended: "of ended threads", large: "large, of no thread", free: "given back, kept" };

/** Of an allocator that keeps segments of threads. */
function segmentsCard(found) {
  const all = found.total;
  const resident = all.resident + all.free_resident + all.own_resident;
  const doubt = found.doubtful ? [`${thousands(found.doubtful)} segments changed while they were read, or are in swap: they are in no figure`] : [];
  return h("div", { class: "card segments" }, h("h2", {}, found.allocator),
    sumsTable(["whose", "mapped", "committed", "in use", "inside", "free", "of it RSS"], found.heaps, all,
      (heap) => (heap.owner === "thread" ? `thread ${hex(heap.thread)}` : OWNERS[heap.owner] || heap.owner),
      (heap) => [heap.mapped, heap.committed, heap.used, heap.inside, heap.free, heap.free_resident]),
    words(doubt),
    wayTable([
      [resident, "resident", `of ${size(all.mapped)} in segments`, true],
      [all.resident, "pages", `of ${size(all.pages)} in pages with blocks`],
      [all.used, "in use", `${count(all.used_blocks, "block")}, by what can be used of them`],
      [all.returned, "to be taken back", `${count(all.returned_blocks, "block")} that other threads freed; the thread takes them back later`],
      [all.inside, "free inside", "space for more blocks of the pages' sizes: purging leaves it"],
      [all.padding, "padding", "what no block can use"],
      [all.free_resident, "free", `of slices without blocks: ${found.purged}`, true],
      [all.own_resident, "own", "headers of segments"],
      [Math.max(0, all.mapped - resident), "not in memory", "purged, or never touched"],
    ]));
}
