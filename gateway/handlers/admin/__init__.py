"""Handlers of admin APIs: topics, configs, cluster, security and transactions.

`create_topics.py` also serves DeleteTopics and CreatePartitions.

May import what `gateway.handlers` may, and the handler of Metadata.
"""
