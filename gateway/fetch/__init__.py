"""The Fetch path: reading, fetch sessions (KIP-227) and conversion of record formats."""
