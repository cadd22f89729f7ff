"""Decodes requests and encodes replies.

kafka-python's codec handles most messages. Those that carry records, and those that each group
member sends every few seconds, have hand-written codecs. May import `gateway.protocol.errors`.
"""
