"""Closes connections between two requests when a gateway leaves its cluster.

A request that arrives while its connection is closed is not answered. Producers that do not retry
then lose its records, and kafka-python 1.0, which does not notice the end of its connection, waits
40 s for the reply. A client that always has a request under way is never idle.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gateway.coroutines import Clock, sleep
from gateway.net.transport import HALF_CLOSE_SECONDS

#: After its shards have moved to other nodes, a gateway answers until no client has sent a request
#: for the first number of seconds, but no longer than the second. Connections that are idle for the
#: first number of seconds are closed in one step.
QUIET_SECONDS, LINGER_SECONDS = HALF_CLOSE_SECONDS, 2.0

#: After that, a connection is closed once it is idle for the first number of seconds. Those that
#: are not within the second are closed after their next replies.
PAUSE_SECONDS, BETWEEN_SECONDS = 0.002, 1.0


class HasActivity(Protocol):
    """`last_active` is when the connection last received or sent data, in seconds of the clock."""

    @property
    def last_active(self) -> float: ...


class Drainable(Protocol):
    def drain_between_requests(self, seconds: float) -> bool:
        """Close the connection if it has been idle for `seconds`.

        Returns False if this may succeed later: it is not yet idle for that time, or it appends
        records. Other requests may wait for minutes, and clients repeat them.
        """
        ...


async def wait_until_quiet(
    connections: Collection[HasActivity], clock: Clock, until: float
) -> None:
    """Return when all connections have been inactive for QUIET_SECONDS, or after LINGER_SECONDS.

    `until` is an earlier end of this wait, in seconds of the clock.
    """
    end = min(clock.seconds() + LINGER_SECONDS, until)
    while (now := clock.seconds()) < end:
        last = max((one.last_active for one in connections), default=now - QUIET_SECONDS)
        if last + QUIET_SECONDS <= now:
            return
        await sleep(clock, min(last + QUIET_SECONDS, end) - now)


async def close_between_requests(
    connections: Collection[Drainable], clock: Clock, until: float
) -> None:
    """Close connections that are idle, and wait at most BETWEEN_SECONDS for those of producers.

    `until` is as in `wait_until_quiet`.
    """
    end = min(clock.seconds() + BETWEEN_SECONDS, until)
    busy = list(connections)
    while clock.seconds() < end:
        busy = [one for one in busy if not one.drain_between_requests(PAUSE_SECONDS)]
        if not busy:
            return
        await sleep(clock, PAUSE_SECONDS)
