-- A paused sandbox is live. The condition names the states that are not, so that a new state counts toward quotas.
DROP VIEW live_sandboxes;
DROP INDEX sandboxes_by_live_name;
DROP INDEX sandboxes_by_use;
DROP INDEX sandboxes_by_live_age;

-- The condition of the indices below, word for word, so that queries of the view use them.
CREATE VIEW live_sandboxes AS
SELECT * FROM sandboxes WHERE state NOT IN ('ended', 'lost');

CREATE UNIQUE INDEX sandboxes_by_live_name ON sandboxes (project, name)
WHERE state NOT IN ('ended', 'lost');

CREATE INDEX sandboxes_by_use ON sandboxes (project, memory_bytes, disk_bytes)
WHERE state NOT IN ('ended', 'lost');

CREATE INDEX sandboxes_by_live_age ON sandboxes (project, created_at_ms DESC, id DESC)
WHERE state NOT IN ('ended', 'lost');
