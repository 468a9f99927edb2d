-- Accounts and the history of sandboxes. What is searched by is a column; the whole is JSON beside it.

CREATE TABLE projects (
    name TEXT NOT NULL PRIMARY KEY,
    quota TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE keys (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL REFERENCES projects (name),
    -- SHA-256 of the secret. Secrets are random, so a slow hash would protect nothing more.
    secret_hash BLOB NOT NULL UNIQUE,
    created_at_ms INTEGER NOT NULL,
    -- A revoked key keeps its row: the audit log names it, and its id is never given again.
    revoked_at_ms INTEGER,
    body TEXT NOT NULL
) STRICT;

CREATE TABLE sandboxes (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL REFERENCES projects (name),
    name TEXT,
    state TEXT NOT NULL,
    reason TEXT,
    created_at_ms INTEGER NOT NULL,
    ended_at_ms INTEGER,
    memory_bytes INTEGER NOT NULL,
    disk_bytes INTEGER NOT NULL,
    idempotency_key TEXT,
    request_hash BLOB,
    body TEXT NOT NULL,
    CHECK ((idempotency_key IS NULL) = (request_hash IS NULL))
) STRICT;

-- The condition of the indices below, word for word, so that queries of the view use them.
CREATE VIEW live_sandboxes AS
SELECT * FROM sandboxes WHERE state IN ('starting', 'running', 'stopping');

CREATE UNIQUE INDEX sandboxes_by_live_name ON sandboxes (project, name)
WHERE state IN ('starting', 'running', 'stopping');

CREATE UNIQUE INDEX sandboxes_by_idempotency_key ON sandboxes (project, idempotency_key)
WHERE idempotency_key IS NOT NULL;

-- What a quota adds up is in the index itself.
CREATE INDEX sandboxes_by_use ON sandboxes (project, memory_bytes, disk_bytes)
WHERE state IN ('starting', 'running', 'stopping');

CREATE INDEX sandboxes_by_age ON sandboxes (project, created_at_ms DESC, id DESC);

CREATE INDEX sandboxes_by_live_age ON sandboxes (project, created_at_ms DESC, id DESC)
WHERE state IN ('starting', 'running', 'stopping');

CREATE INDEX sandboxes_by_end ON sandboxes (ended_at_ms) WHERE ended_at_ms IS NOT NULL;
