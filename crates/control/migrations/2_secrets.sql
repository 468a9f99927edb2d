-- Secrets of projects, and the authorities that vouch for hosts in their sandboxes. Values and keys are sealed with a key that is not here.

CREATE TABLE secrets (
    project TEXT NOT NULL REFERENCES projects (name),
    name TEXT NOT NULL,
    sealed BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL,
    changed_at_ms INTEGER NOT NULL,
    PRIMARY KEY (project, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE authorities (
    project TEXT NOT NULL PRIMARY KEY REFERENCES projects (name),
    certificate TEXT NOT NULL,
    sealed BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL
) STRICT;
