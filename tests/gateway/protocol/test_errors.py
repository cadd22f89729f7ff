"""Errors of requests, and the memory that they keep."""

from __future__ import annotations

import gc
import weakref

import pytest

from gateway.coroutines import SharedResult, start
from gateway.protocol.errors import ErrorCode, KafkaError, clear_frames, storage_error
from gateway.protocol.wire.primitives import MAX_STRING_BYTES
from storage.log import (
    EntryTooLarge,
    Fenced,
    LogClosed,
    NotAllowed,
    OffsetOutOfRange,
    StorageFailed,
    TopicExists,
    UnknownTopic,
)


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


def kept(seen):
    """The failure as seen by the code that replies."""
    try:
        check(seen)
    except KafkaError as failure:
        return failure


def test_kept_failure_frees_variables_of_its_frames():
    seen = []
    gc.disable()
    try:
        failure = kept(seen)
        assert seen[0]() is not None
        clear_frames(failure)
        assert seen[0]() is None
    finally:
        gc.enable()
    assert failure.code is ErrorCode.MESSAGE_TOO_LARGE


def test_clearing_frames_does_not_end_coroutine_that_caught_failure():
    """A failed partition open raises one exception in a Produce, which replies, and a Fetch,
    which continues.
    """
    opening, turn, ends = SharedResult(), SharedResult(), []

    async def fetch():
        try:
            await opening
        except KafkaError:
            await turn
        return "fetched"

    async def produce():
        try:
            await opening
        except KafkaError as failure:
            clear_frames(failure)
        return "refused"

    for work in (fetch(), produce()):
        start(work, ends.append, ends.append)
    opening.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    turn.succeed(None)
    assert ends == ["refused", "fetched"]


def test_failure_that_was_not_raised_can_be_cleared():
    clear_frames(KafkaError(ErrorCode.INVALID_REQUEST))


def test_failure_without_message_uses_name_of_code():
    assert KafkaError(ErrorCode.KAFKA_STORAGE_ERROR).message == "Kafka storage error"
    assert (
        KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full").message == "the disk is full"
    )


def test_messages_printed_by_kafka_tools_match_kafka():
    # Errors.UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID of Kafka 3.9.2.
    assert (
        KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION).message
        == "This server does not host this topic-partition."
    )
    assert (
        KafkaError(ErrorCode.UNKNOWN_TOPIC_ID).message == "This server does not host this topic ID."
    )


def test_long_error_message_is_truncated():
    failure = KafkaError(
        ErrorCode.INVALID_CONFIG, "Unknown topic config name: " + "\U0001f511" * 30_000
    )
    assert failure.message.startswith("Unknown topic config name: \U0001f511")
    assert failure.message.endswith("...")
    assert len(failure.message.encode()) <= MAX_STRING_BYTES


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (OffsetOutOfRange("x"), ErrorCode.OFFSET_OUT_OF_RANGE),
        (Fenced("x"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (LogClosed("x"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (StorageFailed("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (EntryTooLarge("x"), ErrorCode.MESSAGE_TOO_LARGE),
        (NotAllowed("x"), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (UnknownTopic("x"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicExists("x"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_storage_errors_map_to_client_errors(failure, code):
    assert storage_error(failure).code is code
