"""Requests with many elements are carried out in slices, and other requests are served between the slices."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, TypeVar

from gateway.coroutines import Clock, Waiter, gather
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.routes import EncodedReply
from gateway.protocol.wire.messages import encode
from storage.log import Buffer

#: Rows of a reply that are made in one turn of the reactor, some 5 ms' worth. A reply that has more is put into bytes on another thread.
SLICE_ROWS = 500

#: Calls of one request that run at the same time, and how many rows each of them counts as: some 50 us.
MAX_CONCURRENT_CALLS = 50
CALL_ROWS = 5

#: As how many rows a partition counts that may have to be opened.
PARTITION_OPEN_ROWS = 4

#: Configs of one topic or resource that a request may name; there are some 40.
MAX_CONFIGS = 500

#: Topics or resources that one request of an administrator may change. Kafka's QuorumController.MAX_RECORDS_PER_USER_OP.
MAX_CHANGES = 10_000

T = TypeVar("T")


class TimeSlices:
    """The slices of one request. Between two slices the reactor serves others, by way of `clock`."""

    __slots__ = ("_clock", "_left", "rows")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = SLICE_ROWS
        self.rows = 0
        """Rows counted in all slices."""

    def count(self, rows: int = 1) -> bool:
        """Count rows. True at the end of a slice: the caller then awaits `pause`. For loops that run for every record batch."""
        self.rows += rows
        self._left -= rows
        return self._left <= 0

    async def pause(self) -> None:
        """Begin the next slice once the reactor has served others."""
        self._left = SLICE_ROWS
        await Waiter(self._clock).wait(0)

    async def take(self, rows: int = 1) -> None:
        """Count rows, and pause at the end of a slice."""
        if self.count(rows):
            await self.pause()

    async def gather(self, works: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """As `waiting.gather`, a few at a time. `works` makes each coroutine when it is its turn."""
        outcomes: list[T | BaseException] = []
        works = iter(works)
        while some := list(islice(works, MAX_CONCURRENT_CALLS)):
            outcomes += await gather(some)
            await self.take(len(some) * CALL_ROWS)
        return outcomes


def check_changes(count: int) -> None:
    """Raises KafkaError(POLICY_VIOLATION) where one request would change too much; then it changes nothing."""
    if count > MAX_CHANGES:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{count} changes in one request are more than {MAX_CHANGES}: divide the request",
        )


def check_configs(count: int) -> None:
    """Raises KafkaError(POLICY_VIOLATION) where a request names too many configs of one topic or resource."""
    if count > MAX_CONFIGS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{count} configs of one resource are more than {MAX_CONFIGS}",
        )


def _encode(reply: Any, version: int) -> list[Buffer]:
    return [encode(reply, version)]


async def encode_if_large(
    reply: Any,
    slices: TimeSlices,
    caller: Caller,
    write: Callable[[Any, int], list[Buffer]] = _encode,
) -> Any:
    """The reply, encoded by `write` already if it is a large one. Its parts must not change any more."""
    if slices.rows <= SLICE_ROWS:
        return reply
    return EncodedReply(await caller.run(write, reply, caller.api_version))
