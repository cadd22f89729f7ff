"""kafka-python's admin client, with raw requests and retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, for_code

Result = TypeVar("Result")

RETRY_SECONDS = 0.2


class AdminClient(KafkaAdminClient):
    """An admin client that can send any request.

    The library's own methods decode the metadata of group members and fail for unknown formats.
    """

    def coordinators(self, group_ids: Iterable[str]) -> dict[str, int]:
        """Return the coordinator's node id of each group. Raises KafkaError."""
        found: dict[str, int] = self._manager.run(self._find_coordinator_ids, list(group_ids))
        return found

    def send(self, request: Any, node_id: int | None = None) -> Any:
        """Send a request to a node, or to any, and return the response. Raises KafkaError.

        The highest version that both the server and the library support is used.
        """
        return self._manager.run(self._send, request, node_id)

    def send_to_controller(self, request: Any, error_codes: Callable[[Any], Iterable[int]]) -> Any:
        """Send a request to the controller of the cluster and return the response.

        `error_codes` returns the codes in a response: if the controller has changed, the request is
        sent again. Raises KafkaError.
        """

        async def send() -> Any:
            return await self._send_request_to_controller(
                request,
                lambda response: [for_code(code) for code in error_codes(response)],
                raise_errors=False,
            )

        return self._manager.run(send)

    async def _send(self, request: Any, node_id: int | None) -> Any:
        try:
            return await self._manager.send(request, node_id=node_id)
        except (KafkaConnectionError, NodeNotReadyError) as error:
            node = None if node_id is None else self._manager.cluster.broker_metadata(node_id)
            if node is None:
                raise
            # The library's message has neither the address nor, while it waits to connect again,
            # a reason.
            raise type(error)(
                f"cannot connect to node {node_id} at its advertised address "
                f"{node.host}:{node.port}"
            ) from error


def retry(
    client: KafkaAdminClient,
    call: Callable[[], Result],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Return the result of `call`, repeating it after retriable errors until the request timeout.

    The first request about groups makes a new Kafka cluster create its offsets topic; until then
    groups have no coordinator.
    """
    deadline = clock() + client.config["request_timeout_ms"] / 1000
    while True:
        try:
            return call()
        except KafkaError as error:
            if not error.retriable or clock() >= deadline:
                raise
        sleep(RETRY_SECONDS)
