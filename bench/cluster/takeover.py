"""How long the partitions of a gateway that stops are not served by another one.

The clients: a thread that asks another gateway for the leaders, and a thread for each partition
that the gateway led. As soon as a partition has another leader, its thread asks that leader for the
log end offset, again after each error. So no partition waits for the answer of another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from tests.peers.chaos.servers import GatewayDied
from tests.peers.cluster.gateways import Gateways, end_offset, leaders
from tests.testkit.gateway import Peer

#: Seconds between two requests for the leaders, and after an error.
PAUSE_SECONDS = 0.01

LIMIT_SECONDS = 120.0


class Takeover:
    """Create it before the gateway `node` stops, which leads a part of `topic`."""

    def __init__(self, gateways: Gateways, topic: str, node: int) -> None:
        self._gateways = gateways
        self._topic = topic
        self._node = node
        running = [number for number, one in gateways.nodes.items() if one.is_running()]
        self._other = next(number for number in running if number != node)
        self._leaders: dict[int, int] = {}
        self._known = threading.Condition()
        self._is_over = threading.Event()
        #: Time at which each partition was served by another gateway.
        self._served: dict[int, float] = {}
        with gateways.nodes[self._other].peer() as peer:
            found = leaders(peer, topic)
        self._lost = [index for index, leader in found.items() if leader == node]
        if not self._lost:
            raise GatewayDied(f"gateway {node} leads no partition of {topic}: {found}")

    def wait(self) -> Sequence[float]:
        """Return the times at which the partitions were served again. Raises GatewayDied."""
        clients = [
            threading.Thread(target=self._ask, args=(index,), daemon=True) for index in self._lost
        ]
        for one in clients:
            one.start()
        end = time.monotonic() + LIMIT_SECONDS
        try:
            while len(self._served) < len(self._lost):
                if time.monotonic() > end:
                    raise GatewayDied(f"served: {self._served}\n{self._gateways.log()}")
                with suppress(OSError), self._gateways.nodes[self._other].peer() as peer:
                    self._follow(peer, end)
        finally:
            self._is_over.set()
            for one in clients:
                one.join()
        return list(self._served.values())

    def _follow(self, peer: Peer, end: float) -> None:
        while len(self._served) < len(self._lost) and time.monotonic() < end:
            found = leaders(peer, self._topic)
            with self._known:
                self._leaders = found
                self._known.notify_all()
            time.sleep(PAUSE_SECONDS)

    def _ask(self, index: int) -> None:
        while not self._is_over.is_set():
            leader = self._leaders.get(index, self._node)
            if leader == self._node:
                with self._known:
                    self._known.wait(PAUSE_SECONDS)
                continue
            with suppress(OSError), self._gateways.nodes[leader].peer() as peer:
                if end_offset(peer, self._topic, index)[0] == 0:
                    self._served[index] = time.monotonic()
                    return
            self._is_over.wait(PAUSE_SECONDS)
