"""State tables on compacted topics: keyed rows, loading, writing and compaction."""
