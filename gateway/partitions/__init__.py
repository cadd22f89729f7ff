"""Partitions: produce and read paths, idempotent producers, and log compaction."""
