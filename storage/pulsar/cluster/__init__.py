"""What gateways of one cluster share on Pulsar (`storage.cluster`): the metadata log, the presence
of nodes, and their inboxes. Topics in the metadata namespace, beside the state tables.

May import the rest of `storage/pulsar`.
"""
