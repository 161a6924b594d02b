CREATE TABLE surroundings(     -- limits and what counts against them, one row for each snapshot
  snapshot INTEGER PRIMARY KEY,
  figures TEXT NOT NULL,       -- JSON object: name and value; a name that is missing is not known
  sum INTEGER NOT NULL
);
