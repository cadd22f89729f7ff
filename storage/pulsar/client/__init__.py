"""The client library: its threads, producers and readers."""
