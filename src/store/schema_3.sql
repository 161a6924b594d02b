CREATE TABLE code(             -- allocators and runtimes in the files with code, one row for each snapshot
  snapshot INTEGER PRIMARY KEY,
  marks TEXT NOT NULL,         -- JSON object: libc_malloc (address), files (major, minor, inode, marks …)
  sum INTEGER NOT NULL
);
