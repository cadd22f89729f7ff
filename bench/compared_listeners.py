"""A gateway with listeners that lack a feature, for bench/traffic.py.

`python -m bench.compared_listeners serve ...` takes the options of `kopgate serve`. Connections
with and without the feature are served by one process, because the CPU time of two processes
differs by some percent for as long as they run, depending on their memory layout.
"""

from __future__ import annotations

from dataclasses import replace

from auth.mechanism import Principal
from gateway import app, server
from gateway.broker import Broker
from gateway.cli.main import main
from gateway.net.listeners import Listener
from gateway.security.client_quotas import ClientQuotas
from gateway.traffic.client_identity import PeerAddress
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from gateway.traffic.traffic_log import TrafficLog

UNLOGGED = "UNLOGGED"
"""Name of the listener that is not logged."""

OPEN = "OPEN"
"""Name of the listener that checks no ACLs and counts no quotas."""


class PartialTrafficLog(TrafficLog):
    """A traffic log that ignores the listener UNLOGGED."""

    def connection(self, peer: PeerAddress, principal: Principal | None) -> Recorder:
        return NULL_RECORDER if peer.listener == UNLOGGED else super().connection(peer, principal)


class PartlyOpenListener(Listener):
    """A listener; the one named OPEN gets a broker without authorizer and quotas."""

    @property
    def broker(self) -> Broker:
        return self._broker

    @broker.setter
    def broker(self, broker: Broker) -> None:
        if self.name == OPEN:
            # It is never opened, so it holds no quotas.
            no_quotas = ClientQuotas(broker.client_quotas._table, max_entities=0)
            broker = replace(broker, authorizer=None, client_quotas=no_quotas)
        self._broker = broker


if __name__ == "__main__":
    app.TrafficLog = PartialTrafficLog
    server.Listener = PartlyOpenListener
    main(prog_name="kopgate")
