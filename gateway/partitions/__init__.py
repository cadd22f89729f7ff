"""The leader's side of partitions: append, idempotent producers, opening, and compaction."""
