"""The entry format `pulsar`: topics that native Pulsar clients read and write (decision 017)."""
