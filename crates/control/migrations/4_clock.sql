-- The latest time that a server of this store has seen, in one row: what has expired stays expired when the clock goes back.

CREATE TABLE clock (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 0),
    latest_ms INTEGER NOT NULL
) STRICT;
