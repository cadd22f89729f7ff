"""Converts batches to records and back, for stores that keep single records (`BatchFormat`).

Batches and message sets of any format and codec are unpacked. Records are packed into one
uncompressed batch of format 2, readable by consumers of Fetch v4 and later and by the converter.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.partitions.stored_records import read_records
from records import (
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    RecordsError,
    build_batch,
    peek_magic,
    read_header,
    stamp_batch,
)
from storage.log import Buffer
from storage.plain_records import PlainBatch, PlainRecord, ProducerSequence

_NO_PRODUCER = ProducerSequence(-1, -1, -1)


class V2BatchFormat:
    """Unpacks and packs batches; a batch may unpack to at most `max_decompressed_bytes`."""

    def __init__(self, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> None:
        self._max_decompressed_bytes = max_decompressed_bytes

    def unpack(self, payload: Buffer) -> PlainBatch:
        """`BatchFormat.unpack`."""
        try:
            found = [
                PlainRecord(one.key, one.value, one.headers, one.timestamp)
                for one in read_records(
                    payload, max_decompressed_bytes=self._max_decompressed_bytes
                )
            ]
        except RecordsError as error:
            raise ValueError(str(error)) from error
        if peek_magic(payload) != 2:
            return PlainBatch(found)
        batch = read_header(payload)
        sequence = (
            ProducerSequence(batch.producer_id, batch.producer_epoch, batch.base_sequence)
            if batch.has_producer
            else None
        )
        return PlainBatch(found, sequence)

    def pack(self, batch: PlainBatch) -> bytearray:
        """`BatchFormat.pack`."""
        first = batch.records[0].timestamp
        producer = batch.sequence or _NO_PRODUCER
        header = BatchHeader(
            base_offset=0,
            leader_epoch=0,
            attributes=0,
            last_offset_delta=len(batch.records) - 1,
            base_timestamp=first,
            max_timestamp=max(record.timestamp for record in batch.records),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=producer.base_sequence,
            count=len(batch.records),
        )
        return bytearray(build_batch(header, _content(batch.records, first)))

    def stamp(self, payload: bytearray, base_offset: int, leader_epoch: int) -> None:
        """`BatchFormat.stamp`."""
        stamp_batch(memoryview(payload), base_offset, leader_epoch, None)


def _content(batch: Sequence[PlainRecord], base_timestamp: int) -> bytearray:
    content = bytearray()
    for index, record in enumerate(batch):
        body = bytearray(1)
        _put_varint(body, record.timestamp - base_timestamp)
        _put_varint(body, index)
        _put_sized(body, record.key)
        _put_sized(body, record.value)
        _put_varint(body, len(record.headers))
        for name, value in record.headers:
            _put_sized(body, name)
            _put_sized(body, value)
        _put_varint(content, len(body))
        content += body
    return content


def _put_sized(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
        return
    _put_varint(out, len(value))
    out += value


def _put_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint of up to 64 bits."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
