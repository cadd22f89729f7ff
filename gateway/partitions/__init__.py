"""Partitions: produce and read paths, idempotent producers, and the records that compaction keeps.

May import `gateway.configs`, `records` and `compat`, but not the topics that own the partitions.
"""
