"""pulsar-client: the client and its threads, producers and readers."""
