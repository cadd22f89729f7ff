"""Times of sessions, leases and the controller's role, in seconds.

Clocks of different processes are never compared: a node counts its lease from its own time of
sending a heartbeat, the controller counts the session from its own time of receipt.

The controller subtracts from each lease the time since it asked for the last confirmation of its
role. So each lease that it has given ends at most `lease` after that, and another process can take
the role only after that. The new controller starts a full session for every node. So no node serves
after its session has ended if

    lease < session_timeout

with a margin for clocks of different rates: 7 % in each direction. It does not matter when the role
is taken, so force may be used long before leases end: after `force_after` of silence, which is up
to 1.8 s with the jitter of a node, when at least 2.2 s of the other nodes' leases have not passed
(2.55 s less one interval between confirmations). They go on serving if the new controller answers
within the difference. That is the node with the lowest id; the next ones wait longer
(`Member._turn`).

The node of a controller that hangs cannot be asked. Its lease is shorter, because its controller is
in the same process, so its session at the controller that replaced it by force is shorter, too:

    controller_lease < controller_session            (with the same margin)
    session_timeout <= force_after + controller_session

The second line is for leases that the node had from an earlier controller.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionTiming:
    """`SessionTiming.of(session_timeout)` returns the times that belong together.

    `lease` and `controller_lease` (of the controller's own node) count from the confirmation of the
    role. The controller acts for `role_lease` after a confirmation. A node tries to become
    controller after the silence `lead_after`, and by force after `force_after`. A node whose
    presence was lost has `gone_session` for its next heartbeat. `moves_at_once` limits the shards
    that change their leader as planned at the same time.
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
