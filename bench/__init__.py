"""Side-by-side benchmarks: the gateway and Apache Kafka on one machine, in one run, under the same Java clients."""
