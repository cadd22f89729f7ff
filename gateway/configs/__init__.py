"""Configs of topics, groups and brokers that clients can describe and alter."""
