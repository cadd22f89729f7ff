"""Definitions of messages that kafka-python does not have, in the form of Kafka's own (docs/decisions/012)."""
