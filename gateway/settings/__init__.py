"""Settings of the gateway, one module per section, and the layers they come from.

Imports no other folder.
"""
