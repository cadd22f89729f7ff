"""Who asks: what a handler knows of a request besides its body."""

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
    """One per request. `peer` is "host:port", `listener` the listener's name; `client_id` is None where the client sent null; `traffic` notes what the
    request was about. `long_poll` is the connection's."""

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
        """The client whose turn the work takes (`gateway.workers`): its principal and its address."""
        return self.session.principal, self.session.host

    def run(self, function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
        """Call a function on another thread, in turn with other clients' calls."""
        return self.broker.run_for(self.owner, function, *arguments)
