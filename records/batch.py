"""A record batch (format 2) without its records: reading, building and stamping the header.

Layout (Kafka's DefaultRecordBatch): base offset int64, length int32 (of what follows it), partition
leader epoch int32, magic int8, CRC-32C uint32 (of all that follows it), attributes int16, last
offset delta int32, base timestamp int64, max timestamp int64, producer id int64, producer epoch
int16, base sequence int32, record count int32, records.
"""

from __future__ import annotations

from struct import Struct, pack_into

import msgspec
from crc32c import crc32c

from records.errors import CorruptRecords
from records.layout import (
    APPEND_TIME_BIT,
    CONTROL_BIT,
    CRC,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_INT64,
    TRANSACTIONAL_BIT,
    Buffer,
    Codec,
    codec_of,
)  # fmt: skip

HEADER_BYTES = 61
BATCH_CRC_AT = 17
BATCH_CRC_FROM = 21
"""The CRC-32C of a batch covers everything from the attributes."""

BATCH_ATTRIBUTES_AT = 22
LAST_OFFSET_DELTA_AT = 23
"""Position of the attributes' low byte, which has all assigned bits."""

NO_PRODUCER_ID = -1

_HEADER = Struct(">qiiBIhiqqqhii")
_LEADER_EPOCH_AT = 12
_MAX_TIMESTAMP_AT = 35


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """Fields of the header; timestamps are in milliseconds.

    `count` is the number of records, `size` the batch's total size in bytes, which `build_batch`
    computes.
    """

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    size: int = 0

    @property
    def codec(self) -> Codec:
        """Raises UnsupportedCodec."""
        return codec_of(self.attributes)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_producer(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record.

        Wraps after 2^31 - 1 (DefaultRecordBatch.incrementSequence).
        """
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def append_time(self) -> int | None:
        """The timestamp of all records if the timestamp type is LogAppendTime, else None."""
        return self.max_timestamp if self.attributes & APPEND_TIME_BIT else None


def read_header(payload: Buffer) -> BatchHeader:
    """Parse the header without checks. Raises struct.error for fewer than 61 bytes."""
    fields = _HEADER.unpack_from(payload)
    return BatchHeader(
        fields[0],
        fields[2],
        fields[5],
        fields[6],
        fields[7],
        fields[8],
        fields[9],
        fields[10],
        fields[11],
        fields[12],
        fields[1] + LOG_OVERHEAD,
    )


def read_batch(payload: Buffer) -> BatchHeader:
    """Check length, magic and CRC-32C of a single batch and return its header. Raises
    CorruptRecords.
    """
    if len(payload) < HEADER_BYTES:
        raise CorruptRecords(f"{len(payload)} bytes are too short for a record batch")
    if payload[MAGIC_AT] != 2:
        raise CorruptRecords(f"records of format {payload[MAGIC_AT]} are not a record batch")
    batch = read_header(payload)
    if batch.size != len(payload):
        raise CorruptRecords(f"record batch length is {batch.size} bytes, received {len(payload)}")
    if crc32c(memoryview(payload)[BATCH_CRC_FROM:]) != CRC.unpack_from(payload, BATCH_CRC_AT)[0]:
        raise CorruptRecords("record batch checksum does not match")
    base, last_delta = batch.base_offset, batch.last_offset_delta
    if base < 0 or last_delta < 0 or base > MAX_INT64 - last_delta or batch.count < 0:
        raise CorruptRecords("record batch has an invalid offset or record count")
    return batch


def build_batch(batch: BatchHeader, records: Buffer) -> bytes:
    """Build a batch from a header and `records`, which are already compressed as the attributes
    say.
    """
    whole = bytearray(HEADER_BYTES + len(records))
    size = len(whole) - LOG_OVERHEAD
    _HEADER.pack_into(
        whole, 0, batch.base_offset, size, batch.leader_epoch, 2, 0, batch.attributes,
        batch.last_offset_delta, batch.base_timestamp, batch.max_timestamp, batch.producer_id,
        batch.producer_epoch, batch.base_sequence, batch.count,
    )  # fmt: skip
    whole[HEADER_BYTES:] = records
    _update_crc(whole)
    return bytes(whole)


def stamp_batch(
    payload: bytearray | memoryview, base_offset: int, leader_epoch: int, append_time: int | None
) -> None:
    """Write the offset, leader epoch and log append time (ms) into the batch.

    Offset and epoch are not covered by the CRC; a log append time is.
    """
    pack_into(">q", payload, 0, base_offset)
    pack_into(">i", payload, _LEADER_EPOCH_AT, leader_epoch)
    if append_time is not None:
        payload[BATCH_ATTRIBUTES_AT] |= APPEND_TIME_BIT
        pack_into(">q", payload, _MAX_TIMESTAMP_AT, append_time)
        _update_crc(payload)


def _update_crc(whole: bytearray | memoryview) -> None:
    CRC.pack_into(whole, BATCH_CRC_AT, crc32c(memoryview(whole)[BATCH_CRC_FROM:]))
