"""Topics in Pulsar: names, namespaces, listing, changes, and retention policies."""
