"""State tables on compacted topics."""
