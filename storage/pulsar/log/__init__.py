"""Partition logs on Pulsar topics: appending, opening, offsets and reading."""
