"""Sockets: listeners, connections, the TCP transport, framing and flow control."""
