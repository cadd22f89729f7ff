"""Topics, partition logs and state tables on Apache Pulsar.

Uses pulsar-client and the brokers' admin REST API; nothing is installed in the brokers.
"""
