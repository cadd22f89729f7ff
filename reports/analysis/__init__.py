"""Analyses of the tables: activity, client identity, readiness for a target, costs and trend.

May import `reports.ingest` and `compat.fingerprint`.
"""
