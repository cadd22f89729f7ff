"""Processes requests with many elements in slices, so that other requests are served between
slices.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, TypeVar

from gateway.coroutines import Clock, gather, sleep
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.routes import EncodedReply
from gateway.protocol.wire.messages import encode
from storage.log import Buffer

#: Rows of a reply that are built in one reactor turn, about 5 ms. A larger reply is encoded on
#: another thread.
SLICE_ROWS = 500

#: Calls of one request that run concurrently, and the rows that each counts as (about 50 us).
MAX_CONCURRENT_CALLS = 50
CALL_ROWS = 5

#: Rows that a partition counts as if it may have to be opened.
PARTITION_OPEN_ROWS = 4

#: Configs of one topic or resource in a request. About 40 exist.
MAX_CONFIGS = 500

#: Topics or resources that one request may change. Kafka: QuorumController.MAX_RECORDS_PER_USER_OP.
MAX_CHANGES = 10_000

T = TypeVar("T")


class TimeSlices:
    """The slices of one request.

    Between two slices the reactor serves other requests. `rows` counts the rows of all slices.
    """

    __slots__ = ("_clock", "_left", "rows")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = SLICE_ROWS
        self.rows = 0

    def count(self, rows: int = 1) -> bool:
        """Count rows. Returns True at the end of a slice; the caller then awaits `pause`.

        For loops that run once per record batch.
        """
        self.rows += rows
        self._left -= rows
        return self._left <= 0

    async def pause(self) -> None:
        """Start the next slice after the reactor has served other requests."""
        self._left = SLICE_ROWS
        await sleep(self._clock, 0)

    async def take(self, rows: int = 1) -> None:
        """Count rows, and pause at the end of a slice."""
        if self.count(rows):
            await self.pause()

    async def gather(self, works: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """Like `coroutines.gather`, with at most MAX_CONCURRENT_CALLS at a time.

        `works` creates each coroutine when it is started.
        """
        outcomes: list[T | BaseException] = []
        works = iter(works)
        while some := list(islice(works, MAX_CONCURRENT_CALLS)):
            outcomes += await gather(some)
            await self.take(len(some) * CALL_ROWS)
        return outcomes


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
    return EncodedReply(await caller.run(write, reply, caller.api_version))
