"""Times of sessions, leases and the controller's role, in seconds.

Clocks of different processes are never compared: a node counts its lease from its own time of
sending a heartbeat, the controller counts the session from its own time of receipt.

The controller shortens each lease by the time since it requested the last confirmation of its role.
So all its leases end at most `lease` after that request. Another process can take the role only
after that request, and then starts a full session for every node. So no node serves after its
session has ended if

    lease < session_timeout

with a margin for clocks of different rates: 7 % in each direction. This holds whenever the role is
taken, so force may be used before leases end. With a session timeout of 3 s, a node uses force
after 1.5 s of silence (`force_after`) and its jitter of up to 0.3 s. At the beginning of the
silence, the other nodes' leases had at least 2.2 s left (2.55 s less the age of the last
confirmation, up to one heartbeat interval). So the other nodes serve without a gap if the new
controller answers within 0.4 s. These times are those of the node with the lowest id; nodes with
higher ids use force later (`Member._turn`).

The node of a controller that hangs may hang as well, or may still serve. Its lease is shorter,
because its controller is in the same process. So the controller that replaced it by force can give
it a shorter session:

    controller_lease < controller_session            (with the same margin)
    session_timeout <= force_after + controller_session

The second condition covers leases that an earlier controller gave this node.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionTiming:
    """Times in seconds. `SessionTiming.of(session_timeout)` derives all others from the timeout.

    `lease` and `controller_lease` (of the controller's own node) count from the request for the
    last confirmation of the role. The controller acts for `role_lease` after that request. A node
    tries to become controller after `lead_after` of silence, or at once when the controller's
    presence is lost; by force after `force_after`. A node that the present controller replaced by
    force has a session of `controller_session`. A node whose presence was lost has `gone_session`
    for its next heartbeat. At most `moves_at_once` planned moves of shards are under way at the
    same time.
    """

    session_timeout: float
    heartbeat_interval: float
    lease: float
    controller_lease: float
    controller_session: float
    role_lease: float
    lead_after: float
    force_after: float
    gone_session: float
    moves_at_once: int = 4

    @classmethod
    def of(cls, session_timeout: float = 3.0, moves_at_once: int = 4) -> SessionTiming:
        interval = session_timeout / 10
        return cls(
            session_timeout=session_timeout,
            heartbeat_interval=interval,
            lease=session_timeout * 0.85,
            controller_lease=session_timeout * 0.4,
            controller_session=session_timeout / 2,
            role_lease=2 * interval,
            lead_after=3 * interval,
            force_after=5 * interval,
            gone_session=1.5 * interval,
            moves_at_once=moves_at_once,
        )
