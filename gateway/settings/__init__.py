"""Settings of the gateway, and the layers they come from."""
