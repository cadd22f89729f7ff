"""Partition logs on Pulsar topics: opening, appending, offset index, reading and entry formats."""
