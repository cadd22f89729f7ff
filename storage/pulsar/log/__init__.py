"""Partition logs on Pulsar topics: opening, appending, offset index, reading and entry formats.

May import the other folders except `tables`. It opens logs of `native` as one of the formats.
"""
