"""Bytes to requests and replies to bytes. The codec of kafka-python does all but the roads that carry records, which are written by hand."""
