"""Topics, partition logs and tables in an Apache Pulsar cluster.

Uses pulsar-client and the admin REST API; nothing is installed in the brokers.
"""
