"""Group coordination: members, rebalances and committed offsets.

`classic/` and `consumer/` hold the state machines of the two group protocols, `offsets/` the
committed offsets. May import `gateway.protocol.errors`, `gateway.settings` and `gateway.topics`,
but no handlers.
"""
