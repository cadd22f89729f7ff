"""The entry format `pulsar`: topics that are shared with native Pulsar clients (decision 017)."""
