"""Rows of a state table as keyed messages of its compacted topic.

The key is the message's, one character per byte, so that the topic can be read by Pulsar's own tools where keys are text. The payload is one byte that
says "a row" and then the value; the empty payload is Pulsar's tombstone, and so the row's deletion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX, PREFIX

MAX_KEY_BYTES = 480
"""As the interface of tables promises."""

MAX_MESSAGE_OVERHEAD = 64
"""What a row takes in a batch beside key and value, at the most: its metadata's fields and their lengths."""

END_KEY = "\u2403"
"""The key of the message that ends what a loader reads: no byte of a row's key becomes this character."""

LOCK_TOPIC = "lock"
"""The name behind `__kopgate.` that no table may have."""

_ROW = b"\x01"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")


def table_topic(settings: PulsarSettings, table: str) -> str:
    """The full name of the table's topic. What is no plain word, or means something to Pulsar, is written in hexadecimal digits."""
    is_plain = _PLAIN.fullmatch(table) and "-partition-" not in table and table != LOCK_TOPIC
    local = table if is_plain else f"hex.{table.encode().hex()}"
    return f"{PREFIX}{settings.metadata_tenant}/{settings.metadata_namespace}/{INTERNAL_PREFIX}.{local}"


def message_key(key: bytes) -> str:
    return key.decode("latin-1")


def payload(value: bytes | None) -> bytes:
    """Of the message that sets the row to `value`, or deletes it."""
    return b"" if value is None else _ROW + value


def max_batch_bytes(rows: Mapping[bytes, bytes | None]) -> int:
    """The most that these rows may take in a batch; bytes of a key above 127 take two there."""
    return sum(
        2 * len(key) + len(value or b"") + MAX_MESSAGE_OVERHEAD for key, value in rows.items()
    )


@dataclass(frozen=True, slots=True)
class TableRow:
    """`value` is None for a deleted one."""

    key: bytes
    value: bytes | None


def parse_row(key: str, data: bytes) -> TableRow | None:
    """The row that a message sets; None for one that was not written here."""
    try:
        name = key.encode("latin-1")
    except UnicodeEncodeError:
        return None
    if not 1 <= len(name) <= MAX_KEY_BYTES or not (data == b"" or data.startswith(_ROW)):
        return None
    return TableRow(name, data[1:] if data else None)


def is_gap(key: str, data: bytes) -> bool:
    """Whether this is the place of a row that compaction took out of a batch whose other rows stay; the client library hands it out like a message."""
    return not key and not data
