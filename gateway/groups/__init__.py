"""Group coordination: members, rebalances and committed offsets.

`coordinator` serves the requests, with `group_store` (loads and writes groups), `group_timers` and
`group_migration`. `classic/` and `consumer/` hold the state machines of the two group protocols,
`offsets/` the committed offsets. May import `gateway.protocol.errors`, `gateway.settings` and
`gateway.topics`, but no handlers.
"""
