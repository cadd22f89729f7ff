"""Spark jobs over the traffic log: old clients, readiness for a target, and conversion costs.

`ingest` turns log files into tables; the later steps are functions from DataFrame to DataFrame.
Rows are never processed in Python. May import `compat.fingerprint`, but never `gateway`.
"""
