"""The traffic log: which clients use which API versions, for reports (docs/traffic-log.md).

May import `gateway.topics` and `gateway.partitions`, to write rows to a topic, and the codec.
"""
