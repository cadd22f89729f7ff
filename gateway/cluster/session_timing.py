"""Times of sessions, leases and the controller's role, in seconds.

Three clocks take part, and none is compared with another: a node counts its lease from its own time
of sending a heartbeat, the controller counts the session from its own time of receipt, and the
controller's role counts from its own time of asking the store lock. If the controller changes, the
former one answers heartbeats for at most `role_lease` longer, and the new one starts a full session
for every node. So no node serves after its session has ended if

    role_lease + lease < session_timeout

with a margin for clocks of different rates: the defaults allow 7 % in each direction.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionTiming:
    """`SessionTiming.of(session_timeout)` returns the times that belong together.

    `lead_after` is the silence after which a node tries to become controller, without force;
    with force it does so after `session_timeout`. `moves_at_once` limits the shards that change
    their leader as planned at the same time.
    """

    session_timeout: float
    heartbeat_interval: float
    lease: float
    role_lease: float
    lead_after: float
    moves_at_once: int = 4

    @classmethod
    def of(cls, session_timeout: float = 3.0, moves_at_once: int = 4) -> SessionTiming:
        interval = session_timeout / 10
        return cls(
            session_timeout=session_timeout,
            heartbeat_interval=interval,
            lease=session_timeout * 2 / 3,
            role_lease=session_timeout / 5,
            lead_after=3 * interval,
            moves_at_once=moves_at_once,
        )
