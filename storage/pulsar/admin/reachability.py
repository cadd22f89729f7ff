"""Whether a broker's binary port accepts connections, independently of the admin API."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


def addresses(service_url: str) -> list[tuple[str, int]]:
    """`pulsar://a:6650,b` -> [("a", 6650), ("b", 6650)]."""
    scheme, _, hosts = service_url.partition("://")
    parts = [urlsplit(f"//{host}") for host in hosts.rstrip("/").split(",")]
    return [(part.hostname or "", part.port or PORTS.get(scheme, 6650)) for part in parts]


def connect_error(service_url: str, seconds: float) -> str | None:
    """Why no broker accepts a connection; None if one does. Blocks."""
    reasons = []
    for host, port in addresses(service_url):
        try:
            socket.create_connection((host, port), seconds).close()
        except OSError as failure:
            reasons.append(f"{host}:{port}: {failure.strerror or failure}")
        else:
            return None
    return ", ".join(reasons)
