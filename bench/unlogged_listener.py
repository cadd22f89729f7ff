"""A gateway whose second listener its traffic log does not see: `python -m bench.unlogged_listener serve ...`, for bench/traffic.py alone.

Two processes differ by some percent for as long as they live, by where their memory came to lie; here both kinds of connections are served by one.
"""

from __future__ import annotations

from gateway import app
from gateway.cli.main import main
from gateway.protocol.session import Session
from gateway.traffic.client_identity import Peer
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from gateway.traffic.traffic_log import TrafficLog

UNLOGGED = "UNLOGGED"
"""The name of that listener."""


class PartialTrafficLog(TrafficLog):
    """A traffic log, but for one listener."""

    def connection(self, peer: Peer, session: Session) -> Recorder:
        return NULL_RECORDER if peer.listener == UNLOGGED else super().connection(peer, session)


if __name__ == "__main__":
    app.TrafficLog = PartialTrafficLog  # type: ignore[misc]
    main(prog_name="kopgate")
