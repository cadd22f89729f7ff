"""The cluster of gateways: which gateway leads which shard, and the shards led here.

It does not know what a shard contains: topics, offsets and groups open and close their part of a
shard (`shard_leadership.ShardPart`).
"""
