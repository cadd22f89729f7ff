"""Converts records to Pulsar messages and back: the entry format `pulsar`, one message per record.

The mapping is KoP's (PulsarEntryFormatter and ByteBufUtils): key <-> partition key and ordering
key, headers <-> properties, timestamp <-> event time. Where KoP loses information, the message has
an additional property, `kopgate.record`. A record that does not need it looks like any native
message.

- A key that is UTF-8 becomes the partition key. Any other key is stored as the ordering key and, in
  base64, as the partition key, as by KoP; `kopgate.record` says so. It also marks empty keys, which
  Pulsar's clients do not distinguish from missing ones.
- A header becomes a property. `kopgate.record` has the headers if one has a null value or a value
  or name that is not UTF-8, if a name occurs twice, or if they are not in the order of their names,
  in which clients return properties. The property then has base64 in place of bytes.
- A timestamp of 0, which means none in Pulsar, is in `kopgate.record`. A record without a
  timestamp, or with a negative one, is read with its publish time, as by KoP.
- The first record of a batch has the producer's sequence, so that a retry is recognized after the
  log is read again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from storage.plain_records import PlainRecord, ProducerSequence
from storage.pulsar.log.entry_messages import ENTRY_FORMAT, HEADER

DETAILS_PROPERTY = "kopgate.record"

RESERVED_PROPERTIES = frozenset((DETAILS_PROPERTY, HEADER, ENTRY_FORMAT))
"""Properties with a meaning for the store.

A header with such a name is stored only in `kopgate.record`; otherwise a producer could forge these
properties.
"""

NO_EVENT_TIME = 0


@dataclass(frozen=True, slots=True)
class MessageFields:
    """The fields of a Pulsar message as clients see them.

    `content` is None for a null value. A missing key is empty; `partition_key`, `ordering_key` or
    `properties` is None if a client cannot decode it as UTF-8. Times are in milliseconds;
    `event_time` is NO_EVENT_TIME if there is none.
    """

    content: bytes | None
    partition_key: str | None = ""
    ordering_key: bytes | None = b""
    properties: Mapping[str, str] | None = field(default_factory=dict)
    event_time: int = NO_EVENT_TIME
    publish_time: int = 0


_Headers = list[list[str | int | None]]


class RecordDetails(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The property `kopgate.record`, in JSON: what the other fields of the message cannot hold.

    `key` is EMPTY, or BASE64 if the partition key is in base64. `headers` has all headers in order,
    each as one of: [name], with the value in the property of that name; [name, base64 or null];
    [name in base64, base64 or null, 1].
    """

    key: str | None = None
    headers: _Headers | None = None
    timestamp: int | None = None
    sequence: ProducerSequence | None = None


EMPTY, BASE64 = "", "base64"
_NO_DETAILS = RecordDetails()
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(RecordDetails)


def message_from_record(
    record: PlainRecord, sequence: ProducerSequence | None = None
) -> MessageFields:
    """The message for a record; `sequence` is given for the first record of an idempotent batch."""
    partition_key, ordering_key, stored_key = "", b"", None
    if record.key is not None:
        text = _decode_text(record.key)
        if text is None:
            partition_key, ordering_key, stored_key = (
                b64encode(record.key).decode(),
                record.key,
                BASE64,
            )
        elif text:
            partition_key = text
        else:
            stored_key = EMPTY
    properties, stored_headers = _properties(record.headers)
    timestamp = record.timestamp
    details = RecordDetails(stored_key, stored_headers, 0 if timestamp == 0 else None, sequence)
    if details != _NO_DETAILS:
        properties[DETAILS_PROPERTY] = _ENCODER.encode(details).decode()
    return MessageFields(
        record.value, partition_key, ordering_key, properties, max(timestamp, NO_EVENT_TIME)
    )


def record_from_message(fields: MessageFields) -> tuple[PlainRecord, ProducerSequence | None]:
    """The record in a message of any writer.

    Never raises: an invalid `kopgate.record` is treated like any other property.
    """
    properties = fields.properties or {}
    details = _parse_details(properties)
    headers = None if details is None else _headers_from_details(details, properties)
    if details is None or headers is None:
        details, headers = (
            _NO_DETAILS,
            tuple([(name.encode(), value.encode()) for name, value in properties.items()]),
        )
    event_time = fields.event_time if 0 < fields.event_time < _INT64 else fields.publish_time
    timestamp = details.timestamp if details.timestamp is not None else event_time
    return PlainRecord(_key(fields, details), fields.content, headers, timestamp), details.sequence


def _properties(
    headers: tuple[tuple[bytes, bytes | None], ...],
) -> tuple[dict[str, str], _Headers | None]:
    """The properties for the headers, and the headers for `kopgate.record` if it is needed."""
    if not headers:
        return {}, None
    properties: dict[str, str] = {}
    exact: _Headers = []
    # Of headers that share a name, the last one becomes the property, as in Kafka's lastHeader.
    last = {name: index for index, (name, _) in enumerate(headers)}
    for index, (name, value) in enumerate(headers):
        name_text = _decode_text(name)
        if name_text is None:
            exact.append([b64encode(name).decode(), _base64(value), 1])
            continue
        is_shown = last[name] == index and name_text not in RESERVED_PROPERTIES
        value_text = None if value is None else _decode_text(value)
        if is_shown:
            properties[name_text] = (_base64(value) or "") if value_text is None else value_text
        exact.append(
            [name_text] if is_shown and value_text is not None else [name_text, _base64(value)]
        )
    # Python compares strings in the order of their UTF-8 bytes, as clients sort properties.
    is_plain = all(len(one) == 1 for one in exact) and all(
        str(a[0]) < str(b[0]) for a, b in pairwise(exact)
    )
    return properties, None if is_plain else exact


def _parse_details(properties: Mapping[str, str]) -> RecordDetails | None:
    text = properties.get(DETAILS_PROPERTY)
    if text is None:
        return _NO_DETAILS
    try:
        details = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    sequence = details.sequence
    is_sound = (
        details.key in (None, EMPTY, BASE64)
        and details.timestamp in (None, 0)
        and (sequence is None or _is_valid(sequence))
    )
    return details if is_sound else None


def _is_valid(sequence: ProducerSequence) -> bool:
    producer_id, epoch, base = sequence.producer_id, sequence.producer_epoch, sequence.base_sequence
    return 0 <= producer_id < _INT64 and 0 <= epoch < _INT16 and 0 <= base < _INT32


def _headers_from_details(
    details: RecordDetails, properties: Mapping[str, str]
) -> tuple[tuple[bytes, bytes | None], ...] | None:
    """None if the details do not match the properties."""
    if details.headers is None:
        return tuple(
            [
                (name.encode(), value.encode())
                for name, value in properties.items()
                if name != DETAILS_PROPERTY
            ]
        )
    headers: list[tuple[bytes, bytes | None]] = []
    try:
        for first, *rest in details.headers:
            name = str(first)
            value = (
                properties[name].encode()
                if not rest
                else None
                if rest[0] is None
                else b64decode(str(rest[0]), validate=True)
            )
            headers.append(
                (b64decode(name, validate=True) if len(rest) > 1 else name.encode(), value)
            )
    except (KeyError, ValueError):
        return None
    return tuple(headers)


def _key(fields: MessageFields, details: RecordDetails) -> bytes | None:
    if details.key == EMPTY:
        return b""
    partition_key, ordering_key = fields.partition_key, fields.ordering_key
    if details.key == BASE64 or ordering_key is None:
        # KoP stores the base64 of a key that the client cannot decode in the partition key.
        decoded = _from_base64(partition_key or "")
        if decoded is not None:
            return decoded
    # KoP prefers the ordering key.
    return ordering_key or (partition_key or "").encode() or None


def _decode_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _from_base64(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True) or None
    except ValueError:
        return None


_INT64, _INT32, _INT16 = 1 << 63, 1 << 31, 1 << 15
