"""What a message of a topic in the formats `kafka` and `mixed_kafka` says beside its payload: one Pulsar message is one Kafka batch or message set.

Everything that the store must know of a topic again after a restart stands here, beside the bytes it is about; Pulsar is the only source of truth.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from storage.log import Entry

ENTRY_FORMAT = "entry.format"
"""The property by which KoP marks its messages, with the same values."""

HEADER = "kopgate"
"""The property with the header: its version and then the fields of `Header`, a JSON array of numbers."""

HEADER_VERSION = 1

_MAX_INT64 = (1 << 63) - 1
_Natural = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT64)]
_OrNone = Annotated[int, msgspec.Meta(ge=-1, le=_MAX_INT64)]
"""-1 is none."""

_ENTRY_HEADER = struct.Struct(">qqqI")
"""Where a message holds several entries: base offset, last offset, greatest timestamp and bytes of each, before the payloads."""


class Header(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    gc=False,
    tag=HEADER_VERSION,
    forbid_unknown_fields=True,
):
    """`bytes_before`: the payload bytes of all messages that the partition ever had before this one. `leader_epoch`: of the writer.

    One that takes no offset (`last_offset < base_offset`) only marks where the next begins. `greatest_timestamp` is the greatest
    `max_timestamp` that the partition ever had, up to this message: it never falls, so a time can be searched by bisection.
    `entries` is more than one only for what was appended in one call: a message is stored whole or not at all.
    """

    base_offset: _Natural
    last_offset: _OrNone
    max_timestamp: _OrNone
    bytes_before: _Natural
    leader_epoch: _OrNone
    greatest_timestamp: _OrNone = -1
    entries: Annotated[int, msgspec.Meta(ge=1, le=_MAX_INT64)] = 1

    def properties(self, entry_format: str) -> dict[str, str]:
        """The properties of a message in that format."""
        return {ENTRY_FORMAT: entry_format, HEADER: _encode(self).decode()}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Header).decode


def parse_header(properties: Mapping[str, str]) -> Header | None:
    """The header that `properties` bear; None for a message that this store did not write, whatever its properties are."""
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
    """The payload of one message with several entries. Kafka's batches come alone: only what must be stored together is packed so."""
    places = [
        _ENTRY_HEADER.pack(one.base_offset, one.last_offset, one.max_timestamp, len(one.payload))
        for one in entries
    ]
    return b"".join([*places, *(one.payload for one in entries)])


def unpack_entries(header: Header, payload: bytes) -> list[Entry]:
    """The entries of a message, in order; `payload` as the only one where it does not hold as many as the header says."""
    if header.entries > 1 and header.entries * _ENTRY_HEADER.size <= len(payload):
        found = []
        begin = header.entries * _ENTRY_HEADER.size
        for base, last, time, size in _ENTRY_HEADER.iter_unpack(payload[:begin]):
            found.append(Entry(base, last, time, payload[begin : begin + size]))
            begin += size
        if (
            begin == len(payload)
            and found[0].base_offset == header.base_offset
            and found[-1].last_offset == header.last_offset
        ):
            return found
    return [Entry(header.base_offset, header.last_offset, header.max_timestamp, payload)]


def entry_payload_bytes(header: Header, payload: bytes) -> int:
    """How many bytes of a message's payload are its entries' payloads."""
    return len(payload) - (header.entries * _ENTRY_HEADER.size if header.entries > 1 else 0)
