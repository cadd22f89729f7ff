"""Partitions: produce and read paths, idempotent producers, and the records that compaction keeps.

May import `gateway.configs` and `records`, and `stored_records` also `compat`, but not the topics
that own the partitions.
"""
