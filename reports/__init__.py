"""Spark jobs over the traffic log: who still speaks old Kafka, what a target would refuse, and what conversions cost.

`ingest` turns log files into tables; everything after it is functions from DataFrame to DataFrame. Rows never pass through Python.
"""
