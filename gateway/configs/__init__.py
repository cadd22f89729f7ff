"""Configs of topics, groups and brokers that clients can describe and alter.

May import `gateway.settings`, the errors and the codec, but neither topics nor partitions.
"""
