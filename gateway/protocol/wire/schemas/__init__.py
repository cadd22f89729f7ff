"""Message definitions that kafka-python lacks, in the format of Kafka's (docs/decisions/012)."""
