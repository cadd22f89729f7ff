"""The rebalance timer of a classic group: how long a rebalance waits for members to rejoin."""

from __future__ import annotations

from gateway.groups.group_effects import NEVER


class RebalanceTimer:
    """Kafka's DelayedJoin and, for the first rebalance of an empty group, InitialDelayedJoin.

    The first rebalance always waits for its full delay, so that members that start together share
    a generation. The delay is repeated while members join, at most until their rebalance timeout.
    Times are in ms.
    """

    def __init__(self) -> None:
        self.deadline = NEVER
        self.has_new_member = False
        """Whether a member has joined for the first time since the timer was set."""
        self._delay = 0.0
        self._extension_left: float | None = None
        """Time for which the first rebalance may still be extended; None for later rebalances."""

    def start(self, now: float, timeout: float) -> None:
        self.deadline, self._extension_left = now + timeout, None

    def start_first(self, now: float, delay: float, timeout: float) -> None:
        self.deadline, self._delay = now + delay, delay
        self._extension_left = max(timeout - delay, 0)

    @property
    def is_first(self) -> bool:
        """Whether the rebalance must not end early."""
        return self._extension_left is not None

    def extend(self, now: float) -> bool:
        """Extend the first rebalance if members have joined meanwhile. Returns whether it was."""
        if not self._extension_left or not self.has_new_member:
            return False
        delay = min(self._delay, self._extension_left)
        self._extension_left -= delay
        self.deadline, self.has_new_member = now + delay, False
        return True

    def stop(self) -> None:
        """The generation has started."""
        self._extension_left, self.has_new_member = None, False
