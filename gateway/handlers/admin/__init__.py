"""Handlers of admin APIs: topics, configs, cluster, security and transactions."""
