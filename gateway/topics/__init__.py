"""Topics: the registry, their names and states, and the opening of their partitions.

May import `gateway.partitions`, `gateway.configs` and `gateway.settings`.
"""
