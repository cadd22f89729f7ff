"""What goes into a Fetch reply: reading, fetch sessions (KIP-227) and conversion of record formats."""
