CREATE TABLE meta(
  key TEXT PRIMARY KEY,
  value,
  sum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE process(
  id INTEGER PRIMARY KEY,
  pid INTEGER NOT NULL,
  parent INTEGER,              -- pid of the process that forked it
  name,                        -- as its threads were named when it was last seen to change
  began_ns INTEGER,            -- NULL: before tracing
  exec_ns INTEGER,             -- last execve
  exe INTEGER,                 -- file.id
  ended_ns INTEGER,
  status INTEGER               -- wait status: exit code << 8 | signal
);
CREATE TABLE thread(           -- one row for each name that a thread had
  id INTEGER PRIMARY KEY,
  process INTEGER NOT NULL,    -- process.id
  pid INTEGER NOT NULL,
  tid INTEGER NOT NULL,
  name,
  sum INTEGER NOT NULL
);
CREATE TABLE space(            -- an address space (mm)
  id INTEGER PRIMARY KEY,
  mm INTEGER NOT NULL,         -- the kernel's key; it may come again for another one
  sum INTEGER NOT NULL
);
CREATE TABLE module(
  id INTEGER PRIMARY KEY,
  path,
  major INTEGER NOT NULL,
  minor INTEGER NOT NULL,
  inode INTEGER NOT NULL,
  build_id TEXT,
  sum INTEGER NOT NULL
);
CREATE TABLE frame(
  id INTEGER PRIMARY KEY,
  module INTEGER,              -- NULL: address is absolute
  address INTEGER NOT NULL,    -- offset in the module's file
  kind INTEGER NOT NULL,       -- 0 next instruction, 1 return address, 2 guessed return address
  sum INTEGER NOT NULL
);
CREATE TABLE stack(
  id INTEGER PRIMARY KEY,
  completeness TEXT NOT NULL,  -- complete, truncated, incomplete
  frames TEXT NOT NULL,        -- JSON array of frame.id, innermost first
  sum INTEGER NOT NULL
);
CREATE TABLE symbol(           -- what a frame is called; inlined functions before the one they are in
  frame INTEGER NOT NULL,
  n INTEGER NOT NULL,
  function TEXT,
  linkage TEXT,                -- as in the symbol table
  offset INTEGER,
  function_start INTEGER,      -- without a name: where the function begins
  function_offset INTEGER,
  file TEXT,
  line INTEGER,
  inlined INTEGER NOT NULL,
  sum INTEGER NOT NULL,
  PRIMARY KEY(frame, n)
) WITHOUT ROWID;
CREATE TABLE file(             -- what calls mapped
  id INTEGER PRIMARY KEY,
  major INTEGER NOT NULL,
  minor INTEGER NOT NULL,
  inode INTEGER NOT NULL,
  path,
  deleted INTEGER NOT NULL,
  sum INTEGER NOT NULL
);
CREATE TABLE vma_name(         -- given by prctl(PR_SET_VMA_ANON_NAME)
  id INTEGER PRIMARY KEY,
  name,
  sum INTEGER NOT NULL
);
CREATE TABLE op(
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL
);
CREATE TABLE event(
  id INTEGER PRIMARY KEY,      -- as in the report's origin.event
  time_ns INTEGER NOT NULL,    -- CLOCK_MONOTONIC
  thread INTEGER NOT NULL,
  space INTEGER NOT NULL,
  op INTEGER NOT NULL,
  ret INTEGER NOT NULL,        -- address, 0 or -errno
  stack INTEGER NOT NULL,      -- -1 never taken, -2 lost, -3 unreadable
  virt INTEGER,                -- VmSize after the call, bytes
  addr INTEGER,
  len INTEGER,
  prot INTEGER,
  flags INTEGER,
  file INTEGER,
  fd INTEGER,
  offset INTEGER,
  new_addr INTEGER,
  new_len INTEGER,
  value INTEGER,
  sum INTEGER NOT NULL
);
CREATE TABLE fork(
  event INTEGER PRIMARY KEY,
  child_pid INTEGER NOT NULL,
  child_tid INTEGER NOT NULL,
  child_space INTEGER NOT NULL,
  child_sp INTEGER NOT NULL,
  child_brk INTEGER,
  is_thread INTEGER NOT NULL,
  list INTEGER,                -- mapping.list: the child's map, if it is known
  mappings INTEGER NOT NULL,
  sum INTEGER NOT NULL
);
CREATE TABLE exec(
  event INTEGER PRIMARY KEY,
  exe INTEGER,
  start_brk INTEGER NOT NULL,
  brk INTEGER NOT NULL,
  start_stack INTEGER NOT NULL,
  compat INTEGER NOT NULL,     -- a 32-bit program
  list INTEGER,
  mappings INTEGER NOT NULL,
  sum INTEGER NOT NULL
);
CREATE TABLE loss(             -- events older than this were lost
  id INTEGER PRIMARY KEY,
  after_event INTEGER NOT NULL,
  time_ns INTEGER NOT NULL,
  sum INTEGER NOT NULL
);
CREATE TABLE snapshot(         -- ids are shared with loss: together with after_event the order of all steps
  id INTEGER PRIMARY KEY,
  after_event INTEGER NOT NULL,
  kind TEXT NOT NULL,          -- look, found, resync
  pid INTEGER NOT NULL,
  space INTEGER,               -- of a found process
  moment TEXT NOT NULL,        -- exit, live
  begun_ns INTEGER NOT NULL,
  ended_ns INTEGER NOT NULL,
  list INTEGER NOT NULL,       -- mapping.list
  mappings INTEGER NOT NULL,   -- how many
  residency TEXT NOT NULL,     -- pagemap-scan, pagemap, smaps-estimate, none
  pages INTEGER NOT NULL,      -- rows of residency
  vm_size INTEGER NOT NULL,
  vm_peak INTEGER NOT NULL,
  vm_rss INTEGER NOT NULL,
  vm_swap INTEGER NOT NULL,
  vm_hwm INTEGER NOT NULL,
  threads INTEGER NOT NULL,
  minor_faults INTEGER,
  major_faults INTEGER,
  cpu_ns INTEGER,
  user_ns INTEGER,
  system_ns INTEGER,
  name,
  exe,
  cmdline BLOB NOT NULL,       -- each argument ends with a zero byte
  stack_limit INTEGER,
  aslr INTEGER NOT NULL,
  thread_rows INTEGER NOT NULL,
  heap_rows INTEGER NOT NULL,
  gap_rows INTEGER NOT NULL,
  sum INTEGER NOT NULL
);
CREATE TABLE snapshot_thread(
  snapshot INTEGER NOT NULL,
  n INTEGER NOT NULL,
  tid INTEGER NOT NULL,
  name,
  stack_pointer INTEGER,
  sum INTEGER NOT NULL,
  PRIMARY KEY(snapshot, n)
) WITHOUT ROWID;
CREATE TABLE heap_info(        -- glibc's headers of arena heaps
  snapshot INTEGER NOT NULL,
  n INTEGER NOT NULL,
  at INTEGER NOT NULL,
  ar_ptr INTEGER NOT NULL,
  prev INTEGER NOT NULL,
  size INTEGER NOT NULL,
  mprotect_size INTEGER NOT NULL,
  pagesize INTEGER NOT NULL,
  sum INTEGER NOT NULL,
  PRIMARY KEY(snapshot, n)
) WITHOUT ROWID;
CREATE TABLE gap(              -- what could not be read
  snapshot INTEGER NOT NULL,
  n INTEGER NOT NULL,
  text TEXT NOT NULL,
  sum INTEGER NOT NULL,
  PRIMARY KEY(snapshot, n)
) WITHOUT ROWID;
CREATE TABLE mapping(
  list INTEGER NOT NULL,
  n INTEGER NOT NULL,
  start INTEGER NOT NULL,
  size INTEGER NOT NULL,
  prot TEXT NOT NULL,          -- as in /proc/PID/maps
  offset INTEGER NOT NULL,
  backing INTEGER,
  sum INTEGER NOT NULL,
  PRIMARY KEY(list, n)
) WITHOUT ROWID;
CREATE TABLE backing(          -- device, inode and last column of /proc/PID/maps
  id INTEGER PRIMARY KEY,
  major INTEGER,
  minor INTEGER,
  inode INTEGER,
  name,
  sum INTEGER NOT NULL
);
CREATE TABLE residency(
  snapshot INTEGER NOT NULL,
  n INTEGER NOT NULL,
  start INTEGER NOT NULL,
  size INTEGER NOT NULL,
  kind TEXT NOT NULL,          -- resident, swapped; estimate: of a whole VMA
  rss INTEGER,
  swap INTEGER,
  sum INTEGER NOT NULL,
  PRIMARY KEY(snapshot, n)
) WITHOUT ROWID;
CREATE TABLE point(            -- with --interval: what looks came to; ids are shared with snapshot
  pid INTEGER NOT NULL,
  number INTEGER NOT NULL,     -- counts the looks at this process; when there are many, every nth is kept
  id INTEGER NOT NULL,
  after_event INTEGER NOT NULL,
  time_ns INTEGER NOT NULL,
  rss_known INTEGER NOT NULL,
  categories INTEGER NOT NULL, -- rows of point_size
  sum INTEGER NOT NULL,
  PRIMARY KEY(pid, number)
) WITHOUT ROWID;
CREATE TABLE point_size(
  pid INTEGER NOT NULL,
  number INTEGER NOT NULL,
  category TEXT NOT NULL,      -- its id in the report
  virt INTEGER NOT NULL,
  rss INTEGER NOT NULL,        -- 0 where it is not known
  sum INTEGER NOT NULL,
  PRIMARY KEY(pid, number, category)
) WITHOUT ROWID;
CREATE TABLE report(
  id INTEGER PRIMARY KEY,
  json TEXT NOT NULL,          -- what the run reported; docs/report.md
  sum INTEGER NOT NULL
);
CREATE TABLE surroundings(     -- limits and what counts against them, one row for each snapshot
  snapshot INTEGER PRIMARY KEY,
  figures TEXT NOT NULL,       -- JSON object: name and value; a name that is missing is not known
  sum INTEGER NOT NULL
);
CREATE TABLE vma_detail(       -- what smaps and pagemap tell beyond maps
  snapshot INTEGER NOT NULL,
  n INTEGER NOT NULL,
  start INTEGER NOT NULL,
  size INTEGER NOT NULL,
  kind TEXT NOT NULL,          -- vma; guard: pages that MADV_GUARD_INSTALL made inaccessible
  flags TEXT,                  -- VmFlags, of a vma
  pss INTEGER,
  page_size INTEGER,
  hugetlb INTEGER,             -- huge pages in use
  sum INTEGER NOT NULL,
  PRIMARY KEY(snapshot, n)
) WITHOUT ROWID;
CREATE TABLE vma_details(      -- one row for each snapshot
  snapshot INTEGER PRIMARY KEY,
  details INTEGER NOT NULL,    -- rows of vma_detail
  sum INTEGER NOT NULL
);
CREATE TABLE code(             -- allocators and runtimes in the files with code, one row for each snapshot
  snapshot INTEGER PRIMARY KEY,
  marks TEXT NOT NULL,         -- JSON object: libc_malloc (address), files (major, minor, inode, marks …)
  sum INTEGER NOT NULL
);
CREATE TABLE heap_moment(      -- heap -o: a report of a heap, at the end of an interval or of all
  id INTEGER PRIMARY KEY,      -- counts the intervals; when there are many, every nth is kept
  time_ns INTEGER NOT NULL,
  first_part INTEGER NOT NULL, -- heap_part.id
  parts INTEGER NOT NULL,
  stacks TEXT NOT NULL,        -- JSON array of heap_stack.id: those of the report, in its order
  sum INTEGER NOT NULL
);
CREATE TABLE heap_part(        -- of a report, in its order; docs/heap.md
  id INTEGER PRIMARY KEY,
  json TEXT NOT NULL,
  sum INTEGER NOT NULL
);
CREATE TABLE heap_stack(       -- each distinct stack of these reports once
  id INTEGER PRIMARY KEY,
  json TEXT NOT NULL,
  sum INTEGER NOT NULL
);
