"""Committed offsets: the cache, the rows in the table `offsets`, and expiration (KIP-211).

May import `gateway.topics`; groups are visible through the `GroupMemberships` protocol only.
"""
