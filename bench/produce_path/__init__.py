"""Cost of one Produce request in the gateway, without sockets."""
