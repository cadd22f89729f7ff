"""kafka-python's admin client and what it lacks: a request as it is, and patience with a server that says "not now"."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

Result = TypeVar("Result")

RETRY_SECONDS = 0.2


class AdminClient(KafkaAdminClient):
    """The library decodes all that it is answered, and fails over what a member of a group may say in its own way; here it is left alone."""

    def coordinators(self, group_ids: Iterable[str]) -> dict[str, int]:
        """The node that looks after each group. Raises KafkaError."""
        found: dict[str, int] = self._manager.run(self._find_coordinator_ids, list(group_ids))
        return found

    def send(self, request: Any, node_id: int) -> Any:
        """The node's response, in the newest version that it and the library know. Raises KafkaError."""
        return self._manager.run(self._send, request, node_id)

    async def _send(self, request: Any, node_id: int) -> Any:
        return await self._manager.send(request, node_id=node_id)


def retry(
    client: KafkaAdminClient,
    call: Callable[[], Result],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """What `call` returns. It is made again while the server asks for that, for as long as a request may take.

    The first question about groups makes a new Kafka create the topic that it keeps them in, and until then it has no coordinator.
    """
    deadline = clock() + client.config["request_timeout_ms"] / 1000
    while True:
        try:
            return call()
        except KafkaError as error:
            if not error.retriable or clock() >= deadline:
                raise
        sleep(RETRY_SECONDS)
