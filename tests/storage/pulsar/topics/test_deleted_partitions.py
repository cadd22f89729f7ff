"""State of partitions that other clients deleted is deleted once Pulsar says that they are gone."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from storage.log import StorageFailed
from storage.pulsar.admin.admin_api import AdminFailed, NotFound
from storage.pulsar.topics.deleted_partitions import DeletedPartitions

RETRY_SECONDS = 30
FIRST, SECOND = b"a" * 16, b"b" * 16
GONE = NotFound("gone", 404, "Topic not found")
REFUSED = AdminFailed("refused", 403, "Unauthorized")
UNREACHABLE = StorageFailed("no broker answers")


class FakeLookUps:
    """`answers` are raised by look-ups; a topic without one exists."""

    def __init__(self) -> None:
        self.answers: dict[str, Exception] = {}
        self.looked_up: list[str] = []
        self.deleted: list[bytes] = []

    async def look_up(self, full_name: str) -> object:
        self.looked_up.append(full_name)
        if full_name in self.answers:
            raise self.answers[full_name]
        return {}

    async def delete(self, key: bytes) -> None:
        self.deleted.append(key)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pulsar() -> FakeLookUps:
    return FakeLookUps()


@pytest.fixture
def partitions(pulsar: FakeLookUps, clock: Clock) -> DeletedPartitions:
    made = DeletedPartitions(pulsar.look_up, pulsar.delete, RETRY_SECONDS, clock)
    made.start()
    made.opened(FIRST + b"\0\0\0\0", "first")
    made.opened(SECOND + b"\0\0\0\1", "second")
    return made


def test_state_of_missing_partition_is_deleted(
    partitions: DeletedPartitions, pulsar: FakeLookUps, clock: Clock
) -> None:
    pulsar.answers["first"] = GONE
    partitions.topics_listed({SECOND})
    clock.advance(0)
    assert pulsar.deleted == [FIRST + b"\0\0\0\0"]
    clock.advance(RETRY_SECONDS)
    assert pulsar.looked_up == ["first"]


def test_state_is_kept_if_only_the_list_lacks_the_topic(
    partitions: DeletedPartitions, pulsar: FakeLookUps, clock: Clock
) -> None:
    partitions.topics_listed({SECOND})
    clock.advance(0)
    clock.advance(RETRY_SECONDS)
    assert (pulsar.looked_up, pulsar.deleted) == (["first"], [])


def test_deletion_is_retried_until_pulsar_answers(
    partitions: DeletedPartitions, pulsar: FakeLookUps, clock: Clock
) -> None:
    pulsar.answers["first"] = UNREACHABLE
    partitions.topics_listed({SECOND})
    clock.advance(0)
    clock.advance(RETRY_SECONDS)
    assert (pulsar.looked_up, pulsar.deleted) == (["first"] * 2, [])
    pulsar.answers["first"] = GONE
    clock.advance(RETRY_SECONDS)
    assert pulsar.deleted == [FIRST + b"\0\0\0\0"]


def test_refusal_for_one_topic_does_not_prevent_deletion_of_others(
    partitions: DeletedPartitions,
    pulsar: FakeLookUps,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pulsar.answers.update(first=REFUSED, second=GONE)
    partitions.topics_listed(set())
    clock.advance(0)
    assert pulsar.deleted == [SECOND + b"\0\0\0\1"]
    assert "refreshed, using the last known state: refused" in caplog.text
    clock.advance(RETRY_SECONDS)
    assert pulsar.looked_up == ["first", "second", "first"]


def test_nothing_is_looked_up_after_stop(
    partitions: DeletedPartitions, pulsar: FakeLookUps, clock: Clock
) -> None:
    partitions.stop()
    partitions.topics_listed(set())
    clock.advance(RETRY_SECONDS)
    assert pulsar.looked_up == []
