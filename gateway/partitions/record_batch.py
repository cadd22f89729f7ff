"""The header of a v2 record batch: parsing, validation and stamping.

The records are not parsed here.

Layout (Kafka's DefaultRecordBatch): base offset int64, length int32 (of what follows it), partition
leader epoch int32, magic int8, CRC-32C uint32 (of all that follows it), attributes int16, last
offset delta int32, base timestamp int64, max timestamp int64, producer id int64, producer epoch
int16, base sequence int32, record count int32, records.
"""

from __future__ import annotations

from struct import Struct, pack_into, unpack_from

import msgspec
from crc32c import crc32c

from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.wire import compiled
from storage.log import Buffer

HEADER_BYTES = 61
# Byte position of the magic, the same in formats 0, 1 and 2.
MAGIC = 16
# Byte position of the attributes: codec, timestamp type, transactional and control bits.
ATTRIBUTES = 22
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1

_HEADER = Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
_SIZE_BEFORE_LENGTH = 12

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_ZSTD = 4
_FIRST_PRODUCE_WITH_ZSTD = 7


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """Fields of the batch header; timestamps are in milliseconds, `size` is the total in bytes."""

    base_offset: int
    size: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def has_producer(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record.

        Wraps after 2^31 - 1 (DefaultRecordBatch.incrementSequence).
        """
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def magic_of(records: Buffer) -> int:
    """Return the format of the first batch or message, or -1 if `records` is too short."""
    if len(records) <= MAGIC:
        return -1
    magic = records[MAGIC]
    return magic if magic < 0x80 else magic - 0x100


def read_batch(records: Buffer) -> BatchHeader:
    """Parse the header without checks. Raises struct.error for fewer than 61 bytes."""
    fields = _HEADER.unpack_from(records)
    return BatchHeader(
        fields[0],
        fields[1] + _SIZE_BEFORE_LENGTH,
        fields[2],
        fields[5],
        fields[6],
        fields[8],
        fields[9],
        fields[10],
        fields[11],
        fields[12],
    )


def check_batch(records: memoryview, produce_version: int) -> BatchHeader:
    """Validate what a producer sent for one partition: exactly one complete batch.

    Follows ProduceRequest.validateRecords, DefaultRecordBatch.ensureValid and
    LogValidator.validateBatch. Raises KafkaError.
    """
    found: BatchHeader | None = compiled.batch(records, produce_version, BatchHeader)
    if found is not None:
        return found
    if len(records) > MAGIC and records[MAGIC] != 2:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"Produce v{produce_version} requires batches of format 2"
        )
    if len(records) < HEADER_BYTES:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch has {len(records)} bytes, its header alone needs {HEADER_BYTES}",
        )
    batch = read_batch(records)
    if batch.size != len(records):
        if HEADER_BYTES <= batch.size < len(records):
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                "Produce v3 and later require exactly one batch per partition",
            )
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"batch length is {batch.size}, received {len(records)} bytes",
        )
    if crc32c(records[_CRC_FROM:]) != unpack_from(">I", records, 17)[0]:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, "the CRC of the batch does not match its contents"
        )
    if batch.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients cannot write control records")
    if batch.attributes & _LOG_APPEND_TIME:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "producers cannot set the timestamp type LogAppendTime"
        )
    if batch.count <= 0 or batch.last_offset_delta != batch.count - 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"record count {batch.count} does not match last offset delta "
            f"{batch.last_offset_delta}",
        )
    if batch.has_producer and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "a batch with a producer id requires an epoch and a sequence"
        )
    if batch.codec > _ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {batch.codec}"
        )
    if batch.codec == _ZSTD and produce_version < _FIRST_PRODUCE_WITH_ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce v{produce_version} does not support zstd",
        )
    return batch


def stamp_batch(
    records: memoryview, base_offset: int, leader_epoch: int, log_append_time: int | None
) -> None:
    """Write the offset, leader epoch and log append time (ms) into the batch.

    Offset and epoch are not covered by the CRC; a log append time is.
    """
    pack_into(">q", records, 0, base_offset)
    pack_into(">i", records, 12, leader_epoch)
    if log_append_time is not None:
        records[22] |= _LOG_APPEND_TIME
        pack_into(">q", records, 35, log_append_time)
        pack_into(">I", records, 17, crc32c(records[_CRC_FROM:]))
