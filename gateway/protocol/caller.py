"""The context that a handler receives with each request: client, connection and broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from auth.mechanism import Principal
from gateway.broker import Broker
from gateway.protocol.long_poll import LongPoll
from gateway.protocol.session import LoginSession
from gateway.traffic.recorder import NULL_RECORDER, Recorder


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The context of one request.

    `peer` is "host:port" and `listener` the listener's name. `client_id` is None if the client sent
    null. `long_poll` belongs to the connection, `traffic` records the request in the traffic log.
    There is no authorizer: handlers do not check `principal`.
    """

    broker: Broker
    session: LoginSession
    peer: str
    listener: str
    api_version: int
    client_id: str | None
    long_poll: LongPoll
    traffic: Recorder = NULL_RECORDER

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def owner(self) -> tuple[Principal, str]:
        """The client that work on other threads is queued for (`gateway.workers`).

        It is identified by its principal and address.
        """
        return self.session.principal, self.session.host

    def run(self, function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
        """Run a function on another thread, in turn with the calls of other clients."""
        return self.broker.run_for(self.owner, function, *arguments)
