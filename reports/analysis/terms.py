"""The words that tables, page and answer share."""

from __future__ import annotations

APPLICATION = ("principal", "client_id", "address")
"""What an application is told by."""

REFUSED = "refused"
BELOW = "below"
UNKNOWN = "unknown"
FINE = "fine"
STATES = (REFUSED, BELOW, UNKNOWN, FINE)
"""`unknown`: nothing that it sent would be refused, and its library or version is not known well enough; a baseline is one of a library."""
