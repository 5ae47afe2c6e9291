-- Times are integers: milliseconds since 1970, 0 for never; accepted is in
-- seconds. sum is a SHA-256 over the row's other columns (sum.go): SQLite has no
-- checksums of its own, and a zeroed block must not read as a value.

-- How many transactions were committed; compared with the file "written".
CREATE TABLE tally (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    writes INTEGER NOT NULL
) STRICT;
INSERT INTO tally (id, writes) VALUES (1, 0);

CREATE TABLE runs (
    run         INTEGER PRIMARY KEY,
    kind        TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    lease       TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('accepted', 'sealed', 'delivered', 'abandoned')),
    task        BLOB    NOT NULL,
    lease_token TEXT    NOT NULL,
    lease_end   INTEGER NOT NULL,
    accepted    INTEGER NOT NULL,
    ended       INTEGER NOT NULL,
    reason      TEXT    NOT NULL,
    receipt     BLOB    NOT NULL,
    deleted     INTEGER NOT NULL CHECK (deleted IN (0, 1)),
    sum         BLOB    NOT NULL,
    UNIQUE (kind, id, lease)
) STRICT;
CREATE INDEX runs_state ON runs (state);

-- The last value of each step.
CREATE TABLE checkpoints (
    run   INTEGER NOT NULL REFERENCES runs (run),
    step  TEXT    NOT NULL,
    value BLOB    NOT NULL,
    at    INTEGER NOT NULL,
    sum   BLOB    NOT NULL,
    PRIMARY KEY (run, step)
) STRICT;

-- Hashes and signatures stay for ever: the signer's log is compared with them.
CREATE TABLE evidence (
    run       INTEGER NOT NULL REFERENCES runs (run),
    revision  INTEGER NOT NULL,
    hash      TEXT    NOT NULL,
    signature TEXT    NOT NULL,
    drafted   INTEGER NOT NULL,
    sealed    INTEGER NOT NULL,
    sum       BLOB    NOT NULL,
    PRIMARY KEY (run, revision)
) STRICT;

-- The texts behind the hashes, which are their checksums.
CREATE TABLE bodies (
    run      INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    body     BLOB    NOT NULL,
    PRIMARY KEY (run, revision),
    FOREIGN KEY (run, revision) REFERENCES evidence (run, revision)
) STRICT;

CREATE TABLE answers (
    answer   INTEGER PRIMARY KEY,
    run      INTEGER NOT NULL REFERENCES runs (run),
    revision INTEGER NOT NULL,
    class    TEXT    NOT NULL,
    status   INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    sum      BLOB    NOT NULL
) STRICT;
CREATE INDEX answers_run ON answers (run);

CREATE TABLE spending (
    spent  INTEGER PRIMARY KEY,
    run    INTEGER NOT NULL REFERENCES runs (run),
    at     INTEGER NOT NULL,
    tokens INTEGER NOT NULL CHECK (tokens >= 0),
    sum    BLOB    NOT NULL
) STRICT;
CREATE INDEX spending_run ON spending (run);
CREATE INDEX spending_at ON spending (at);

CREATE TRIGGER runs_only_forward BEFORE UPDATE ON runs
WHEN NEW.kind <> OLD.kind OR NEW.id <> OLD.id OR NEW.lease <> OLD.lease OR NEW.accepted <> OLD.accepted
  OR OLD.state IN ('delivered', 'abandoned') AND (NEW.state <> OLD.state OR NEW.reason <> OLD.reason)
  OR OLD.state = 'sealed' AND NEW.state = 'accepted'
  OR NEW.deleted < OLD.deleted
  OR NEW.task <> OLD.task AND NEW.deleted = 0
BEGIN SELECT RAISE(ABORT, 'a run does not change its key, its task or its end'); END;

CREATE TRIGGER runs_stay BEFORE DELETE ON runs
BEGIN SELECT RAISE(ABORT, 'runs stay'); END;

CREATE TRIGGER evidence_sealed BEFORE UPDATE ON evidence
WHEN OLD.signature <> '' OR NEW.hash <> OLD.hash OR NEW.run <> OLD.run OR NEW.revision <> OLD.revision
BEGIN SELECT RAISE(ABORT, 'sealed evidence does not change'); END;

CREATE TRIGGER evidence_stays BEFORE DELETE ON evidence
BEGIN SELECT RAISE(ABORT, 'hashes and signatures stay'); END;

CREATE TRIGGER bodies_final BEFORE UPDATE ON bodies
BEGIN SELECT RAISE(ABORT, 'evidence does not change'); END;

CREATE TRIGGER bodies_stay BEFORE DELETE ON bodies
WHEN (SELECT deleted FROM runs WHERE runs.run = OLD.run) = 0
BEGIN SELECT RAISE(ABORT, 'evidence stays until its run is deleted'); END;

CREATE TRIGGER answers_final BEFORE UPDATE ON answers
BEGIN SELECT RAISE(ABORT, 'answers do not change'); END;

CREATE TRIGGER answers_stay BEFORE DELETE ON answers
BEGIN SELECT RAISE(ABORT, 'answers stay'); END;
