"""Requests about consumer groups: membership, committed offsets and descriptions."""
