"""Checks of the arguments of `PartitionLog` methods."""

from __future__ import annotations

from collections.abc import Sequence

from storage.log import Entry, OffsetOutOfRange


def check_readable(offset: int, start_offset: int, end_offset: int) -> None:
    """Raises OffsetOutOfRange unless `offset` can be read."""
    if not start_offset <= offset <= end_offset:
        raise OffsetOutOfRange(f"offset {offset} is outside {start_offset} to {end_offset}")


def check_append(entries: Sequence[Entry], next_offset: int) -> int:
    """Return the next offset after `entries`.

    Raises OffsetOutOfRange unless they are contiguous and begin at `next_offset`.
    """
    for entry in entries:
        if entry.base_offset != next_offset or entry.last_offset < next_offset:
            raise OffsetOutOfRange(
                f"append expected at offset {next_offset}, "
                f"got {entry.base_offset} to {entry.last_offset}"
            )
        next_offset = entry.last_offset + 1
    return next_offset


def check_replacement(first: int, last: int, entries: Sequence[Entry]) -> None:
    """Raises ValueError unless `entries` are in offset order within `first` to `last`."""
    expected = first
    for entry in entries:
        if not expected <= entry.base_offset <= entry.last_offset <= last:
            raise ValueError(
                f"replacement {entry.base_offset}-{entry.last_offset} is out of order in "
                f"{first}-{last}"
            )
        expected = entry.last_offset + 1
