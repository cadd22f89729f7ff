"""Validation of the record batches of producers, from the header; the records are not parsed."""

from __future__ import annotations

from crc32c import crc32c

from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.wire import compiled
from records import HEADER_BYTES, BatchHeader, Codec, read_header
from records.batch import BATCH_CRC_AT, BATCH_CRC_FROM
from records.layout import APPEND_TIME_BIT, CODEC_MASK, CRC, MAGIC_AT

_FIRST_PRODUCE_WITH_ZSTD = 7


def check_batch(records: memoryview, produce_version: int) -> BatchHeader:
    """Validate what a producer sent for one partition: exactly one complete batch.

    Follows ProduceRequest.validateRecords, DefaultRecordBatch.ensureValid and
    LogValidator.validateBatch. Raises KafkaError.
    """
    found: BatchHeader | None = compiled.batch(records, produce_version, BatchHeader)
    if found is not None:
        return found
    if len(records) > MAGIC_AT and records[MAGIC_AT] != 2:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"Produce v{produce_version} requires batches of format 2"
        )
    if len(records) < HEADER_BYTES:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch has {len(records)} bytes, its header alone needs {HEADER_BYTES}",
        )
    batch = read_header(records)
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
    if crc32c(records[BATCH_CRC_FROM:]) != CRC.unpack_from(records, BATCH_CRC_AT)[0]:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, "the CRC of the batch does not match its contents"
        )
    if batch.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients cannot write control records")
    if batch.attributes & APPEND_TIME_BIT:
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
    codec = batch.attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}"
        )
    if codec == Codec.ZSTD and produce_version < _FIRST_PRODUCE_WITH_ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce v{produce_version} does not support zstd",
        )
    return batch
