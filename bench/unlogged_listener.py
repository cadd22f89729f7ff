"""A gateway with a second listener that its traffic log ignores, for bench/traffic.py.

`python -m bench.unlogged_listener serve ...` takes the options of `kopgate serve`. Both kinds of
connections are served by one process, because the CPU time of two processes differs by some percent
for as long as they run, depending on their memory layout.
"""

from __future__ import annotations

from auth.mechanism import Principal
from gateway import app
from gateway.cli.main import main
from gateway.traffic.client_identity import PeerAddress
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from gateway.traffic.traffic_log import TrafficLog

UNLOGGED = "UNLOGGED"
"""Name of the listener that is not logged."""


class PartialTrafficLog(TrafficLog):
    """A traffic log that ignores the listener UNLOGGED."""

    def connection(self, peer: PeerAddress, principal: Principal | None) -> Recorder:
        return NULL_RECORDER if peer.listener == UNLOGGED else super().connection(peer, principal)


if __name__ == "__main__":
    app.TrafficLog = PartialTrafficLog
    main(prog_name="kopgate")
