CREATE VIEW zero AS              -- what times count from in reports and in events
SELECT coalesce(
  (SELECT begun_ns FROM snapshot WHERE kind = 'found' ORDER BY id LIMIT 1),
  (SELECT time_ns FROM event WHERE id = (SELECT min(event) FROM exec)),
  (SELECT time_ns FROM event ORDER BY id LIMIT 1)
) AS ns;
CREATE VIEW call AS
SELECT
  e.id,
  round((e.time_ns - (SELECT ns FROM zero)) / 1e9, 6) AS t,
  t.pid, t.tid, t.name AS thread, o.name AS op,
  CASE WHEN e.addr IS NOT NULL THEN printf('0x%x', e.addr) END AS addr,
  e.len,
  CASE WHEN e.prot IS NOT NULL THEN
    iif(e.prot & 1, 'r', '-') || iif(e.prot & 2, 'w', '-') || iif(e.prot & 4, 'x', '-') END AS prot,
  CASE WHEN e.op = 0 THEN substr(
    iif(e.flags & 3 = 1, '|SHARED', '') || iif(e.flags & 3 = 2, '|PRIVATE', '') ||
    iif(e.flags & 3 = 3, '|SHARED_VALIDATE', '') ||
    iif(e.flags & 0x10, '|FIXED', '') || iif(e.flags & 0x20, '|ANONYMOUS', '') ||
    iif(e.flags & 0x100, '|GROWSDOWN', '') || iif(e.flags & 0x800, '|DENYWRITE', '') ||
    iif(e.flags & 0x2000, '|LOCKED', '') || iif(e.flags & 0x4000, '|NORESERVE', '') ||
    iif(e.flags & 0x8000, '|POPULATE', '') || iif(e.flags & 0x20000, '|STACK', '') ||
    iif(e.flags & 0x40000, '|HUGETLB', '') || iif(e.flags & 0x100000, '|FIXED_NOREPLACE', ''), 2)
  WHEN e.flags IS NOT NULL THEN printf('0x%x', e.flags) END AS flags,
  f.path AS file,
  CASE WHEN e.new_addr IS NOT NULL THEN printf('0x%x', e.new_addr) END AS new_addr,
  e.new_len, e.value,
  CASE WHEN e.ret BETWEEN -4095 AND -1 THEN e.ret
       WHEN e.op IN (0, 2, 3, 8, 12) THEN printf('0x%x', e.ret) ELSE e.ret END AS ret,
  CASE WHEN e.ret BETWEEN -4095 AND -1 THEN -e.ret END AS errno,
  CASE WHEN e.stack >= 0 THEN e.stack END AS stack,
  e.virt
FROM event e
JOIN thread t ON t.id = e.thread
JOIN op o ON o.id = e.op
LEFT JOIN file f ON f.id = e.file;
CREATE VIEW stack_frame AS
SELECT
  s.id AS stack, j.key AS depth, m.path AS module, printf('0x%x', f.address) AS offset,
  y.n, y.function, y.offset AS function_offset, y.file, y.line, y.inlined, f.id AS frame
FROM stack s, json_each(s.frames) j
JOIN frame f ON f.id = j.value
LEFT JOIN module m ON m.id = f.module
LEFT JOIN symbol y ON y.frame = f.id;
CREATE VIEW stack_name AS
SELECT stack, group_concat(name, ' < ') AS functions
FROM (
  SELECT s.id AS stack, coalesce(y.function,
    replace(m.path, rtrim(m.path, replace(m.path, '/', '')), '') || '+' || printf('0x%x', f.address),
    printf('0x%x', f.address)) AS name
  FROM stack s, json_each(s.frames) j
  JOIN frame f ON f.id = j.value
  LEFT JOIN module m ON m.id = f.module
  LEFT JOIN symbol y ON y.frame = f.id
  ORDER BY s.id, j.key, y.n)
GROUP BY stack;
CREATE VIEW map AS
SELECT
  s.id AS snapshot, s.kind, s.pid, printf('0x%x', p.start) AS start, printf('0x%x', p.start + p.size) AS stop,
  p.size, p.prot, p.offset, b.name
FROM snapshot s
JOIN mapping p ON p.list = s.list
LEFT JOIN backing b ON b.id = p.backing;
CREATE VIEW timeline AS
SELECT
  round((p.time_ns - (SELECT ns FROM zero)) / 1e9, 6) AS t,
  p.pid, s.category, s.virt, iif(p.rss_known, s.rss, NULL) AS rss
FROM point p
JOIN point_size s ON s.pid = p.pid AND s.number = p.number;
