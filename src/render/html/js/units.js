// Numbers for people, spelled as the text report spells them.

const KIB = 1024, MIB = KIB * 1024, GIB = MIB * 1024, TIB = GIB * 1024;

/** `110.2 MiB`, `132 KiB`, `12 B`. */
function size(bytes) {
  if (bytes === 0) return "0";
  if (bytes < KIB) return `${bytes} B`;
  if (bytes < MIB && bytes % KIB === 0) return `${bytes / KIB} KiB`;
  const [unit, name] = bytes < MIB - KIB / 20 ? [KIB, "KiB"]
    : bytes < GIB - MIB / 20 ? [MIB, "MiB"]
    : bytes < TIB - GIB / 20 ? [GIB, "GiB"] : [TIB, "TiB"];
  return `${(Math.round((bytes * 10) / unit) / 10).toFixed(1)} ${name}`;
}

/** `1,284` */
function thousands(n) {
  return String(n).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** `1 region`, `3 regions` */
function count(n, one, many) {
  return `${thousands(n)} ${n === 1 ? one : many || one + "s"}`;
}

function percent(part, whole) {
  if (!whole) return "0 %";
  const value = (part * 100) / whole;
  return value > 0 && value < 1 ? "< 1 %" : value > 99 && value < 100 ? "> 99 %" : `${Math.round(value)} %`;
}

function duration(ns) {
  if (ns < 999.5e6) return `${Math.round(ns / 1e6)} ms`;
  const seconds = ns / 1e9;
  return seconds < 600 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

/** As `--at` takes it. */
function moment(ns) {
  return `${(ns / 1e9).toFixed(3)} s`;
}

function hex(address) {
  return "0x" + address.toString(16);
}

function baseName(path) {
  return path.slice(path.lastIndexOf("/") + 1) || path;
}
