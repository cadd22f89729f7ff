"""A controller and a follower with real brokers, connected by fake inboxes.

The follower has a separate store. The rows of the controller's tables and topics are copied to it
when it waits for a revision.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock

from auth.mechanism import Principal
from gateway import handlers as handlers  # registers their routes
from gateway.cluster.calls import Calls
from gateway.cluster.forwarding import RemoteController
from gateway.protocol.forwarded import serve_calls
from gateway.security.audit import AuditLog
from gateway.security.tenants import Tenants
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.fakes.connection import PEER, MemoryClient
from tests.gateway.cluster.fake_inboxes import FakeInboxes

FOLLOWER, CONTROLLER = 1, 2


class RecordedAudit(AuditLog):
    """Keeps the changes and refusals as (peer, listener, principal)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []

    def changed(self, peer: str, listener: str, principal: Principal, *_: object) -> None:
        self.lines.append((peer, listener, str(principal)))

    def refused(self, peer: str, listener: str, principal: Principal, *_: object) -> None:
        self.lines.append((peer, listener, str(principal)))


class GatewayPair:
    """Two gateways. `controller_id` is the controller that both of them know."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.inboxes = FakeInboxes(self.clock)
        self.controller_id: int | None = CONTROLLER
        self.is_replaying = True
        self.revision = 7
        self.awaited: list[int] = []
        self.calls: dict[int, Calls] = {}
        self.audits = {FOLLOWER: RecordedAudit(), CONTROLLER: RecordedAudit()}
        self.follower = self._open(FOLLOWER, settings)
        self.controller = self._open(CONTROLLER, settings)

    def _open(self, node_id: int, settings: dict[str, Any]) -> BrokerEnvironment:
        calls = self.calls[node_id] = Calls(
            self.inboxes.sender(node_id), self.clock, node_id, 1, lambda _: 1
        )
        self.inboxes.receivers[node_id] = calls.on_message
        access = RemoteController(
            calls, self.clock, node_id, lambda: self.controller_id, self._wait_for
        )
        env = open_environment(clock=self.clock, controller=access, node_id=node_id, **settings)
        object.__setattr__(env.broker, "audit", self.audits[node_id])
        serve_calls(calls, env.broker, lambda: self.revision)
        return env

    async def _wait_for(self, revision: int) -> None:
        self.awaited.append(revision)
        if self.is_replaying:
            self.replay()

    def replay(self) -> None:
        """Copy the rows of the controller's tables and topics to the follower."""
        source, target = self.controller.store, self.follower.store
        for name, rows in source.medium.tables.items():
            known: dict[bytes, bytes | None] = dict.fromkeys(target.medium.tables.get(name, {}))
            for table in [one for key, one in target._tables.items() if key == name]:
                table.outside({**known, **rows})
        target.outside(source.medium.topics.values())

    def client(
        self,
        node_id: int = FOLLOWER,
        *,
        principal: Principal | None = None,
        tenants: Tenants | None = None,
    ) -> MemoryClient:
        env = self.follower if node_id == FOLLOWER else self.controller
        client = MemoryClient(broker=env.broker, listener="PLAINTEXT", tenants=tenants)
        client.session.host = PEER.partition(":")[0]
        if principal is not None:
            client.session.identify(principal)
        return client

    def run(self, seconds: float = 1) -> None:
        self.clock.pump([0.01] * 50 + [0.1] * int(seconds * 10))

    def ask(self, client: MemoryClient, message: Any, version: int, seconds: float = 1) -> bytes:
        """Return the frame of the reply without its correlation id."""
        client.send(frame_of(message, version))
        self.run(seconds)
        (reply,) = client.receive()
        assert not client.is_aborted
        return reply[4:]


def frame_of(message: Any, version: int) -> bytes:
    message.with_header(1, "test")
    return bytes(message.encode(version=version, header=True))
