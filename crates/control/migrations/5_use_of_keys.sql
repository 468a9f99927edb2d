-- When a key was last used; absent if it never was.
ALTER TABLE keys ADD COLUMN last_used_at_ms INTEGER;
