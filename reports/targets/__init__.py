"""Migration targets, one file each."""
