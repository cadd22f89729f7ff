"""Topics, partition logs and tables in an Apache Pulsar cluster, through pulsar-client and the admin REST API; nothing is installed in its brokers."""
