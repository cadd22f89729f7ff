"""Benchmarks: the gateway beside Apache Kafka or a native Pulsar client, on one machine."""
