-- Sessions of agents. What is searched by is a column; the whole is JSON beside it.

CREATE TABLE sessions (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL REFERENCES projects (name),
    created_at_ms INTEGER NOT NULL,
    -- When something of it last changed: what nobody has used for long is forgotten.
    changed_at_ms INTEGER NOT NULL,
    idempotency_key TEXT,
    request_hash BLOB,
    body TEXT NOT NULL,
    CHECK ((idempotency_key IS NULL) = (request_hash IS NULL))
) STRICT;

CREATE UNIQUE INDEX sessions_by_idempotency_key ON sessions (project, idempotency_key)
WHERE idempotency_key IS NOT NULL;

CREATE INDEX sessions_by_age ON sessions (project, created_at_ms DESC, id DESC);

CREATE INDEX sessions_by_change ON sessions (changed_at_ms);
