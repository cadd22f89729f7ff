"""Rows of a state table as keyed messages of its compacted topic.

The message key is the row's key, one character per byte, so that text keys are readable with
Pulsar's own tools. The payload is a byte 1 followed by the value. An empty payload is Pulsar's
tombstone and deletes the row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX, PREFIX

MAX_KEY_BYTES = 480
"""Limit of `StateTable`."""

MAX_STORED_KEY_BYTES = 512
"""Limit of a row's key in its topic: the name of a table may precede it."""

MAX_MESSAGE_OVERHEAD = 64
"""Upper limit for the metadata of a row in a batch, including length fields."""

END_KEY = "\u2403"
"""Key of the message that marks the end for a loader.

No byte of a row's key maps to this character.
"""

LOCK_TOPIC = "lock"
"""Reserved for the store's lock; the topic `__kopgate.lock`."""

_ROW = b"\x01"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")


def table_topic(settings: PulsarSettings, table: str) -> str:
    """Full name of the table's topic.

    Names with other characters than letters, digits, `_` and `-`, and names with a meaning in
    Pulsar, are encoded in hexadecimal.
    """
    is_plain = _PLAIN.fullmatch(table) and "-partition-" not in table and table != LOCK_TOPIC
    local = table if is_plain else f"hex.{table.encode().hex()}"
    namespace = f"{PREFIX}{settings.metadata_tenant}/{settings.metadata_namespace}"
    return f"{namespace}/{INTERNAL_PREFIX}.{local}"


def message_key(key: bytes) -> str:
    return key.decode("latin-1")


def payload(value: bytes | None) -> bytes:
    """The payload that sets a row to `value`, or deletes it."""
    return b"" if value is None else _ROW + value


def max_batch_bytes(rows: Mapping[bytes, bytes | None]) -> int:
    """Upper limit of the rows' size in a batch. Key bytes above 127 take two bytes each."""
    return sum(
        2 * len(key) + len(value or b"") + MAX_MESSAGE_OVERHEAD for key, value in rows.items()
    )


@dataclass(frozen=True, slots=True)
class TableRow:
    """`value` is None for a deleted row."""

    key: bytes
    value: bytes | None


def parse_row(key: str, data: bytes) -> TableRow | None:
    """The row in a message; None for a message that is not a table row."""
    try:
        name = key.encode("latin-1")
    except UnicodeEncodeError:
        return None
    if not 1 <= len(name) <= MAX_STORED_KEY_BYTES or not (data == b"" or data.startswith(_ROW)):
        return None
    return TableRow(name, data[1:] if data else None)


def is_gap(key: str, data: bytes) -> bool:
    """Whether this is a row that compaction removed from a batch while other rows remain.

    The client library delivers such a gap like a message.
    """
    return not key and not data
