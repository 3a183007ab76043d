"""Programs that a peer's own environment runs; each reads a line per order and answers with one."""
