"""Compaction and DeleteRecords on Pulsar: replacement entries in side topics, and trimming.

May import the other folders except `native`. `log` reads replaced ranges through it.
"""
