"""Short constructors of entries and topics for the tests of stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from storage.lmdb.frames import compiled
from storage.log import Entry, PartitionLog, Topic


def entry(base: int, records: int = 1, *, time: int = -1, payload: bytes | None = None) -> Entry:
    """An entry of `records` offsets; by default its payload contains its offset."""
    return Entry(
        base, base + records - 1, time, f"entry {base}".encode() if payload is None else payload
    )


def sized(base: int, size: int, *, records: int = 1, time: int = -1) -> Entry:
    """An entry of `size` bytes."""
    return entry(
        base, records, time=time, payload=(f"{base:012d}".encode() * (size // 12 + 1))[:size]
    )


class Counted(bytes):
    """A payload of zeros; `alive` is the number of existing instances."""

    alive = 0

    def __new__(cls, size: int) -> Counted:
        Counted.alive += 1
        return super().__new__(cls, size)

    def __del__(self) -> None:
        Counted.alive -= 1


def topic(
    name: str = "orders", partitions: int = 1, configs: dict[str, str] | None = None
) -> Topic:
    return Topic(name, name.encode().ljust(16, b"\0")[:16], partitions, configs or {})


def plain(entries: Sequence[Entry]) -> list[tuple[int, int, int, bytes]]:
    """Entries as comparable values, for any kind of payload buffer."""
    return [
        (one.base_offset, one.last_offset, one.max_timestamp, bytes(one.payload)) for one in entries
    ]


def bases(entries: Sequence[Entry]) -> list[int]:
    return [one.base_offset for one in entries]


async def everything(log: PartitionLog) -> list[Entry]:
    """All entries, read from start to end a few bytes at a time."""
    seen: list[Entry] = []
    offset = log.start_offset
    while offset < log.end_offset and (some := await log.read(offset, 100)):
        seen += some
        offset = some[-1].last_offset + 1
    return seen


def compiled_frames() -> Any:
    """The compiled module. The test is skipped if it is not used: it needs compiled entries."""
    made = pytest.importorskip("storage.lmdb._frames")
    if compiled is None:
        pytest.skip("the compiled module is not used")
    return made
