"""Many gateways as one Kafka cluster: nodes, shards with leaders, and the controller.

`view` is what handlers see. `image` holds the rows of the metadata log; `member` (each node) and
`controller` (one of them) are state machines without I/O, clock or randomness, which exchange
`cluster_messages`; `cluster_node` runs them. `shard_leadership` opens and closes the shards led
here; it does not know what a shard contains. `calls` and `forwarding` are requests to other
gateways.
"""
