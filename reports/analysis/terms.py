"""Names shared by tables, page and answer."""

from __future__ import annotations

APPLICATION = ("principal", "client_id", "address")
"""The columns that identify an application."""

REFUSED = "refused"
BELOW = "below"
UNKNOWN = "unknown"
FINE = "fine"
STATES = (REFUSED, BELOW, UNKNOWN, FINE)
"""`unknown`: no request would be refused, but library or version is not known well enough to
compare it with the library's baseline.
"""
