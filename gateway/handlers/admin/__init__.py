"""Handlers of admin APIs: topics, configs, cluster, security and transactions.

May import what `gateway.handlers` may, and the handler of Metadata.
"""
