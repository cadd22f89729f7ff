"""The v2 record batch: its header, its checks, its stamping. Records themselves stay opaque.

Layout (Kafka's DefaultRecordBatch): base offset int64, length int32 (of what follows it), partition leader epoch int32, magic int8, CRC-32C
uint32 (over all that follows it), attributes int16, last offset delta int32, base timestamp int64, max timestamp int64, producer id int64,
producer epoch int16, base sequence int32, record count int32, records.
"""

from __future__ import annotations

from struct import Struct, pack_into, unpack_from

import msgspec
from crc32c import crc32c

from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.wire import compiled
from storage.log import Buffer

HEADER_BYTES = 61
MAGIC = 16  # its position, the same in all three formats
ATTRIBUTES = 22  # the position of a batch's codec, timestamp type, transactional and control bits
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
    """What the header says, with timestamps in milliseconds."""

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
        """The sequence of the last record; sequences wrap after 2^31 - 1 (DefaultRecordBatch.incrementSequence)."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def magic_of(records: Buffer) -> int:
    """The format of the first batch or message, -1 where there is not enough to tell."""
    if len(records) <= MAGIC:
        return -1
    magic = records[MAGIC]
    return magic if magic < 0x80 else magic - 0x100


def read_batch(records: Buffer) -> BatchHeader:
    """The header at the start of `records`, unchecked. Raises struct.error where there are fewer than 61 bytes."""
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
    """Check what a producer sent for one partition: exactly one whole batch that a broker may store.

    Follows ProduceRequest.validateRecords, DefaultRecordBatch.ensureValid and LogValidator.validateBatch. Raises KafkaError.
    """
    found: BatchHeader | None = compiled.batch(records, produce_version, BatchHeader)
    if found is not None:
        return found
    if len(records) > MAGIC and records[MAGIC] != 2:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"Produce v{produce_version} carries batches of format 2 only"
        )
    if len(records) < HEADER_BYTES:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"a batch of {len(records)} bytes, its header alone has {HEADER_BYTES}",
        )
    batch = read_batch(records)
    if batch.size != len(records):
        if HEADER_BYTES <= batch.size < len(records):
            raise KafkaError(
                ErrorCode.INVALID_RECORD, "Produce v3 and later carry exactly one batch a partition"
            )
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"a batch says that it has {batch.size} bytes, and {len(records)} came",
        )
    if crc32c(records[_CRC_FROM:]) != unpack_from(">I", records, 17)[0]:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes")
    if batch.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if batch.attributes & _LOG_APPEND_TIME:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime"
        )
    if batch.count <= 0 or batch.last_offset_delta != batch.count - 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{batch.count} records with a last offset delta of {batch.last_offset_delta}",
        )
    if batch.has_producer and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "a batch with a producer id needs an epoch and a sequence"
        )
    if batch.codec > _ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has number {batch.codec}"
        )
    if batch.codec == _ZSTD and produce_version < _FIRST_PRODUCE_WITH_ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Produce v{produce_version} may not carry zstd"
        )
    return batch


def stamp_batch(
    records: memoryview, base_offset: int, leader_epoch: int, log_append_time: int | None
) -> None:
    """Write into the batch what its leader decides. Offset and epoch lie before the CRC; a log append time (ms) does not."""
    pack_into(">q", records, 0, base_offset)
    pack_into(">i", records, 12, leader_epoch)
    if log_append_time is not None:
        records[22] |= _LOG_APPEND_TIME
        pack_into(">q", records, 35, log_append_time)
        pack_into(">I", records, 17, crc32c(records[_CRC_FROM:]))
