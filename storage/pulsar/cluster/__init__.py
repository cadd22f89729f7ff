"""What gateways of one cluster share on Pulsar (`storage.cluster`): the metadata log, the presence
of nodes, and their inboxes. Their topics are in the metadata namespace, as are the state tables.

May import the rest of `storage/pulsar`.
"""
