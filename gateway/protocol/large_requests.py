"""Requests with many elements: limits on changes, and encoding of large replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gateway.coroutines import SLICE_ROWS, TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.routes import EncodedReply
from gateway.protocol.tenant_messages import reply_to_client
from gateway.protocol.wire.messages import encode
from storage.log import Buffer

T = TypeVar("T")

#: Rows that a partition counts as if it may have to be opened.
PARTITION_OPEN_ROWS = 4

#: Configs of one topic or resource in a request. About 40 exist.
MAX_CONFIGS = 500

#: Topics or resources that one request may change. Kafka: QuorumController.MAX_RECORDS_PER_USER_OP.
MAX_CHANGES = 10_000


def check_changes(count: int) -> None:
    """Check the number of changes in one request before any of them is made.

    Raises KafkaError(POLICY_VIOLATION).
    """
    if count > MAX_CHANGES:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{count} changes in one request, limit {MAX_CHANGES}: split the request",
        )


def check_configs(count: int) -> None:
    """Check the number of configs for one topic or resource.

    Raises KafkaError(POLICY_VIOLATION).
    """
    if count > MAX_CONFIGS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{count} configs for one resource, limit {MAX_CONFIGS}",
        )


def _encode(reply: Any, version: int) -> list[Buffer]:
    return [encode(reply, version)]


async def encode_if_large(
    reply: Any,
    slices: TimeSlices,
    caller: Caller,
    write: Callable[[Any, int], list[Buffer]] = _encode,
) -> Any:
    """Return the reply, encoded by `write` on another thread if it is large.

    Parts of the reply must not change after this call.
    """
    if slices.rows <= SLICE_ROWS:
        return reply
    return EncodedReply(await caller.run(encode_for, caller, reply, write))


async def reply_with_rows(
    items: Iterable[T], row: Callable[[T], Any], reply: Callable[[list[Any]], Any], caller: Caller
) -> Any:
    """Return `reply(rows)`, encoded if it is large, with `row(item)` for each item."""
    slices = TimeSlices(caller.broker.clock)
    rows = []
    for item in items:
        rows.append(row(item))
        await slices.take()
    return await encode_if_large(reply(rows), slices, caller)


def encode_for(
    caller: Caller, reply: Any, write: Callable[[Any, int], list[Buffer]] = _encode
) -> list[Buffer]:
    """Encode a reply with the names that its client uses. The reply cannot be used afterwards."""
    if caller.session.scope is not None:
        reply = reply_to_client(reply, caller.api_version, caller.session.scope)
    return write(reply, caller.api_version)
