"""Bytes to requests and replies to bytes. The codec of kafka-python does all but the roads that carry records, and what every
member of a group sends every few seconds, which are written by hand."""
