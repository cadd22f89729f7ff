"""Sockets: listeners, connections, the TCP transport, framing and flow control.

May import `gateway.protocol`, `gateway.traffic`, `gateway.settings` and `auth`, but no handlers.
Other folders import only `flow_control`.
"""
