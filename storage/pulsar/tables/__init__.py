"""State tables on compacted topics: keyed rows, loading, writing and compaction.

May import `admin`, `client` and the names in `topics`. The store and `compaction` use tables.
"""
