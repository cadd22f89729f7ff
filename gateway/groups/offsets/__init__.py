"""Committed offsets: in memory, in the table `offsets`, and their expiration."""
