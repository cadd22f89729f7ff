"""Requests of administrators: topics, configs, the cluster, security and transactions."""
