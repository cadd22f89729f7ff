"""Requests that ask for very much: they are answered piece by piece, so that others are served in between."""

from __future__ import annotations

from typing import Any

from gateway.caller import Caller
from gateway.routes import Encoded
from gateway.waiting import Clock, Wake
from gateway.wire.messages import encode

#: Rows of a reply that are made in one turn of the reactor, some 5 ms' worth. A reply that has more is put into bytes on another thread.
TURN_ROWS = 500


class Turns:
    """Of one request. `clock` gives the reactor its turns."""

    __slots__ = ("_clock", "_left", "rows")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = TURN_ROWS
        self.rows = 0
        """So many in all."""

    async def take(self, rows: int = 1) -> None:
        """So many have been made: let others have their turn where that is enough for one."""
        self.rows += rows
        self._left -= rows
        if self._left <= 0:
            self._left = TURN_ROWS
            await Wake(self._clock).wait(0)


async def in_bytes(reply: Any, turns: Turns, caller: Caller) -> Any:
    """The reply, encoded already if it is a large one. Nobody else may have its parts."""
    if turns.rows <= TURN_ROWS:
        return reply
    return Encoded(await caller.run(encode, reply, caller.api_version))
