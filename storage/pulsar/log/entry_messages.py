"""Properties and payload of messages in the entry formats `kafka` and `mixed_kafka`.

One Pulsar message holds one Kafka batch or message set. Its header has everything that the store
needs after a restart, so that Pulsar is the only source of truth.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from storage.log import Buffer, Entry

ENTRY_FORMAT = "entry.format"
"""Property by which KoP marks its messages; used with the same values."""

HEADER = "kopgate"
"""Property with the header, a JSON array of numbers: the version, then the fields of `Header`."""

HEADER_VERSION = 1

MAX_MESSAGE_OVERHEAD = 1024
"""Upper limit for the header and the library's metadata in a message; about 200 bytes are used."""

_MAX_INT64 = (1 << 63) - 1
_Natural = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT64)]
_OrNone = Annotated[int, msgspec.Meta(ge=-1, le=_MAX_INT64)]
"""-1 means none."""

_ENTRY_HEADER = struct.Struct(">qqqI")
"""Header of each entry in a message with several entries.

Base offset, last offset, max timestamp and payload bytes. These headers precede the payloads.
"""


class Header(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    gc=False,
    tag=HEADER_VERSION,
    forbid_unknown_fields=True,
):
    """Header of a message.

    - `bytes_before`: payload bytes of all earlier messages of the partition, deleted ones included.
    - `leader_epoch`, `opening`: the epoch of the writer, and how often it had opened the partition
      within this epoch before; together they identify the log that wrote the message.
    - `greatest_timestamp`: the greatest `max_timestamp` of the partition up to this message. It
      never decreases, so it can be searched by bisection.
    - `entries`: more than one if they were appended in one call, because only a message is stored
      atomically.

    A message without records (`last_offset < base_offset`) is a marker that stores the next offset.
    """

    base_offset: _Natural
    last_offset: _OrNone
    max_timestamp: _OrNone
    bytes_before: _Natural
    leader_epoch: _OrNone
    greatest_timestamp: _OrNone = -1
    entries: Annotated[int, msgspec.Meta(ge=1, le=_MAX_INT64)] = 1
    opening: _Natural = 0

    @property
    def writer(self) -> tuple[int, int]:
        return self.leader_epoch, self.opening

    def properties(self, entry_format: str) -> dict[str, str]:
        text = _encode(self).decode()
        # Versions without `opening` do not accept it; it is rarely needed.
        return {ENTRY_FORMAT: entry_format, HEADER: text if self.opening else f"{text[:-3]}]"}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Header).decode


def parse_header(properties: Mapping[str, str]) -> Header | None:
    """The header in `properties`; None for a message that this store did not write."""
    text = properties.get(HEADER)
    if text is None:
        return None
    try:
        header = _decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return (
        header
        if header.base_offset <= header.last_offset + 1
        and header.max_timestamp <= header.greatest_timestamp
        else None
    )


def pack_entries(entries: Sequence[Entry]) -> bytes:
    """The payload of one message with several entries.

    Kafka's batches are sent one per message. Only entries that must be stored together are packed.
    """
    places = [
        _ENTRY_HEADER.pack(one.base_offset, one.last_offset, one.max_timestamp, len(one.payload))
        for one in entries
    ]
    return b"".join([*places, *(one.payload for one in entries)])


def unpack_entries(header: Header, payload: Buffer) -> list[Entry]:
    """The entries of a message, in order.

    If the payload does not hold the entries that the header announces, it is returned as one entry.
    """
    if header.entries > 1 and header.entries * _ENTRY_HEADER.size <= len(payload):
        found = []
        begin = header.entries * _ENTRY_HEADER.size
        for base, last, time, size in _ENTRY_HEADER.iter_unpack(payload[:begin]):
            # A copy: a view of one entry would keep the whole message.
            found.append(Entry(base, last, time, bytes(payload[begin : begin + size])))
            begin += size
        if (
            begin == len(payload)
            and found[0].base_offset == header.base_offset
            and found[-1].last_offset == header.last_offset
        ):
            return found
    return [Entry(header.base_offset, header.last_offset, header.max_timestamp, payload)]


def entry_payload_bytes(header: Header, payload: Buffer) -> int:
    """Bytes of the entries' payloads, without the headers that precede them."""
    return len(payload) - (header.entries * _ENTRY_HEADER.size if header.entries > 1 else 0)
