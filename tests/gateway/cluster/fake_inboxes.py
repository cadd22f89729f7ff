"""Inboxes of several gateways in memory; messages can be delayed, lost and repeated."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import Clock

from storage.cluster import MAX_CALL_BYTES


class FakeInboxes:
    """Messages arrive `delay` seconds after they were sent.

    A message is lost if `loses(sender, target)` returns true. Others arrive `copies` times. As in
    `Inbox`, a message has at most MAX_CALL_BYTES, with the byte for its kind that a node adds.
    """

    def __init__(self, clock: Clock, delay: float = 0.01) -> None:
        self.clock = clock
        self.delay = delay
        self.copies = 1
        self.sent: list[tuple[int, int]] = []
        self.loses: Callable[[int, int], bool] = lambda sender, target: False
        self.receivers: dict[int, Callable[[bytes], None]] = {}

    def sender(self, node_id: int) -> Callable[[int, bytes], None]:
        """Return the `send` function of a gateway: its arguments are a target and a message."""

        def send(target: int, message: bytes) -> None:
            if len(message) + 1 > MAX_CALL_BYTES:
                raise ValueError(f"a message has {len(message)} bytes")
            self.sent.append((node_id, target))
            if self.loses(node_id, target):
                return
            for copy in range(self.copies):
                self.clock.callLater(self.delay * (copy + 1), self._arrive, target, message)

        return send

    def _arrive(self, target: int, message: bytes) -> None:
        receive = self.receivers.get(target)
        if receive is not None:
            receive(message)
