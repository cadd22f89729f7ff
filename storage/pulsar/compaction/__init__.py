"""Compaction and DeleteRecords on Pulsar: replacement entries in side topics, and trimming."""
