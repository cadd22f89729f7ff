"""How long clients wait when gateways of a cluster stop, start and hand over."""
