"""A Kafka broker as its clients see it.

`app` wires the parts and `server` runs them; a request passes `net`, `protocol` and `handlers`,
then a partition or a group, and the handler's return value is the reply. The modules here import
all folders; of these only `cluster`, `coarse_clock`, `coroutines`, `logs`, `memory` and `workers`
may be imported by any folder.
"""
