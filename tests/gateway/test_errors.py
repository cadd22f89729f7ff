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
    assert KafkaError(ErrorCode.UNKNOWN_TOPIC_ID).message == "Unknown topic id"
    assert KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "none has it").message == "none has it"
