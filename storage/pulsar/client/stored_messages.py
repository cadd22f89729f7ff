"""Messages of the store as they were read, and functions for many of them at once.

The functions are the reference of the compiled ones in `_received.pxi`. `functions` has those that
are used. The compiled reader returns objects with the attributes of `StoredMessage` that make
header and position on demand: a read needs them for its first and last message only.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from storage.log import Buffer, Entry
from storage.pulsar.client import bulk_client
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.offset_index import Position


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message written by the store."""

    header: Header
    position: Position
    payload: Buffer

    def __repr__(self) -> str:
        """Omits the payload, which must not be logged."""
        return (
            f"StoredMessage({self.header.base_offset}-{self.header.last_offset} "
            f"at {self.position.ledger_id}:{self.position.entry_id})"
        )


def take(
    waiting: list[StoredMessage], found: list[StoredMessage], end: int, room: int, most: int
) -> tuple[int, bool]:
    """Move messages from `waiting` to `found`, which a read returns, as far as they fit.

    They fit if they begin before offset `end`, `found` has less than `most` messages, and their
    payloads have at most `room` bytes; at least one fits in any case. Returns the room left, and
    whether the read ends because of a message: the last one reaches `end`, or the next one does not
    fit.
    """
    had, taken = len(found), 0
    is_full = False
    for stored in waiting:
        if had + taken and (room <= 0 or had + taken >= most):
            break
        size = len(stored.payload)
        is_full = stored.header.base_offset >= end or (had + taken > 0 and size > room)
        if is_full:
            break
        taken += 1
        room -= size
        is_full = stored.header.last_offset + 1 >= end
        if is_full:
            break
    found += waiting[:taken]
    del waiting[:taken]
    return room, is_full


def entries_of(messages: list[StoredMessage]) -> list[Entry] | None:
    """The entries of messages with one entry each; None if one may have several."""
    entries = []
    for stored in messages:
        header = stored.header
        if header.entries != 1:
            return None
        entries.append(
            Entry(header.base_offset, header.last_offset, header.max_timestamp, stored.payload)
        )
    return entries


functions: Any = bulk_client.compiled or sys.modules[__name__]
"""The module whose functions are used: the compiled one, or this one."""
