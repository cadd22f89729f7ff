"""Topics: the registry, their names and states, the opening of their partitions, and appends that
are passed on to other gateways.

May import `gateway.partitions`, `gateway.configs`, `gateway.cluster`, `gateway.settings` and
`records`.
"""
