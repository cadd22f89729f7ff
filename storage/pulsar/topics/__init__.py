"""Topics in Pulsar: names, namespaces, listing, changes, and retention policies.

May import `admin`, the trimming of `compaction`, and the messages and positions of `log`.
"""
