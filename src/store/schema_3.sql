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
