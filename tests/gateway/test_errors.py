"""How a request fails, and that a failure holds on to nothing."""

from __future__ import annotations

import gc
import weakref

import pytest

from gateway.errors import ErrorCode, KafkaError, release


class Records:
    """Something large."""


def unpack(seen):
    records = Records()
    seen.append(weakref.ref(records))
    raise ValueError("too large")


def check(seen):
    try:
        unpack(seen)
    except ValueError as failure:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE) from failure


def test_a_failure_that_is_kept_lets_go_of_what_it_came_through():
    seen = []
    gc.disable()
    try:
        with pytest.raises(KafkaError) as kept:
            check(seen)
        assert seen[0]() is not None
        release(kept.value)
        assert seen[0]() is None
    finally:
        gc.enable()
    assert kept.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_failure_that_was_never_raised_is_released_as_well():
    release(KafkaError(ErrorCode.INVALID_REQUEST))


def test_a_failure_without_a_message_reads_as_its_code_does():
    assert KafkaError(ErrorCode.KAFKA_STORAGE_ERROR).message == "Kafka storage error"
    assert KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full").message == "the disk is full"


def test_what_kafka_s_tools_print_reads_as_from_kafka():
    # Errors.UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID of Kafka 3.9.2.
    assert KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION).message == "This server does not host this topic-partition."
    assert KafkaError(ErrorCode.UNKNOWN_TOPIC_ID).message == "This server does not host this topic ID."
