// Where regions are drawn: their begins and ends on a line, in one of three scales.

/** Gaps together take at most one part in this many of the line. */
const GAPS = 6;

/**
 * `from`, `to`: of each region, ascending; `length`: the line's; `gap(i)`: bytes free before region i.
 * - `squeezed`: regions to scale, gaps cut short
 * - `scale`: all to scale, from the first mapped byte to the last
 * - `log`: each region by the logarithm of its size, so that small ones are seen next to large ones
 */
function layoutOf(table, kind) {
  const { n, start, end, virt } = table;
  const gap = (i) => (i > 0 ? Math.max(0, start[i] - end[i - 1]) : 0);
  const [from, to] = [new Float64Array(n), new Float64Array(n)];
  if (kind === "scale") {
    const base = n ? start[0] : 0;
    for (let i = 0; i < n; i++) {
      from[i] = start[i] - base;
      to[i] = end[i] - base;
    }
    return { from, to, length: n ? to[n - 1] : 1, gap };
  }
  let [all, gaps] = [0, 0];
  for (let i = 0; i < n; i++) {
    all += virt[i];
    gaps += gap(i) > 0 ? 1 : 0;
  }
  const most = kind === "log" ? 1.5 : Math.min(all / 50, all / GAPS / Math.max(1, gaps));
  let at = 0;
  for (let i = 0; i < n; i++) {
    at += kind === "log" ? (gap(i) > 0 ? most : 0) : Math.min(gap(i), most);
    from[i] = at;
    at += kind === "log" ? Math.log2(1 + virt[i] / 4096) : virt[i];
    to[i] = at;
  }
  return { from, to, length: at || 1, gap };
}

/** The part of a line that is on show. */
class View {
  constructor(length) {
    this.length = length;
    this.all();
  }

  all() {
    [this.low, this.high] = [0, this.length];
  }

  get span() {
    return this.high - this.low;
  }

  /** Times as much (2: half of what was on show), around a point of the line. */
  zoom(times, around = (this.low + this.high) / 2) {
    const span = Math.min(this.length, Math.max(this.span / times, this.length * 1e-12, Number.MIN_VALUE));
    const low = around - ((around - this.low) / this.span) * span;
    this.set(low, low + span);
  }

  pan(by) {
    this.set(this.low + by, this.high + by);
  }

  set(low, high) {
    const span = Math.min(this.length, high - low);
    this.low = Math.min(Math.max(0, low), this.length - span);
    this.high = this.low + span;
  }

  /** Shows a piece with some of what is around it. */
  show(from, to, share) {
    const span = Math.min(this.length, Math.max((to - from) / share, this.length * 1e-12));
    this.set((from + to - span) / 2, (from + to + span) / 2);
  }
}
