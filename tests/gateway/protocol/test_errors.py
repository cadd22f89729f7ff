"""How a request fails, and that a failure holds on to nothing."""

from __future__ import annotations

import gc
import weakref

from gateway.coroutines import SharedResult, start
from gateway.protocol.errors import ErrorCode, KafkaError, clear_frames
from gateway.protocol.wire.primitives import MAX_STRING_BYTES


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
    """The failure, as whoever answers it has it."""
    try:
        check(seen)
    except KafkaError as failure:
        return failure


def test_a_failure_that_is_kept_lets_go_of_what_it_came_through():
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


def test_who_releases_a_failure_ends_nobody_that_caught_it_and_waits_for_something_else():
    """A partition that cannot be opened fails for all who ask for it with one exception: a Produce, which is answered, and a Fetch, which goes on."""
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


def test_a_failure_that_was_never_raised_is_released_as_well():
    clear_frames(KafkaError(ErrorCode.INVALID_REQUEST))


def test_a_failure_without_a_message_reads_as_its_code_does():
    assert KafkaError(ErrorCode.KAFKA_STORAGE_ERROR).message == "Kafka storage error"
    assert (
        KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full").message == "the disk is full"
    )


def test_what_kafka_s_tools_print_reads_as_from_kafka():
    # Errors.UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID of Kafka 3.9.2.
    assert (
        KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION).message
        == "This server does not host this topic-partition."
    )
    assert (
        KafkaError(ErrorCode.UNKNOWN_TOPIC_ID).message == "This server does not host this topic ID."
    )


def test_a_message_that_quotes_long_names_is_cut():
    failure = KafkaError(
        ErrorCode.INVALID_CONFIG, "Unknown topic config name: " + "\U0001f511" * 30_000
    )
    assert failure.message.startswith("Unknown topic config name: \U0001f511")
    assert failure.message.endswith("...")
    assert len(failure.message.encode()) <= MAX_STRING_BYTES
