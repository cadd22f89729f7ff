"""Compaction and DeleteRecords on Pulsar: replaced entries in side topics, and trimming."""
