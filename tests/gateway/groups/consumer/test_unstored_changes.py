"""Replies wait for unstored changes. One write is in flight at a time; failed rows are retried."""

from __future__ import annotations

from gateway.groups.classic.classic_member import JoinResult, SyncResult
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, HeartbeatResult
from gateway.groups.consumer.consumer_rows import ConsumerGroupRow
from gateway.groups.consumer.unstored_changes import UnstoredChanges
from gateway.groups.group_effects import Effect, Reply, StoreRows
from gateway.protocol.errors import ErrorCode

GROUP = b"group"
FINE = HeartbeatResult(ErrorCode.NONE, None, "m", 3)


class EffectRecorder:
    """An `UnstoredChanges` and its effects."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.rows = 0
        self.changes = UnstoredChanges(self.effects, GROUP, self.row)

    def row(self) -> ConsumerGroupRow:
        self.rows += 1
        return ConsumerGroupRow(self.rows, 0, 1, b"", 0)

    def take_effects(self) -> list[Effect]:
        taken = self.effects[:]
        self.effects.clear()
        return taken


def member(number: int) -> ConsumerGroupMember:
    return ConsumerGroupMember(number, f"m{number}")


def test_reply_without_changes_is_sent_at_once():
    recorder = EffectRecorder()
    recorder.changes.reply(1, FINE)
    recorder.changes.flush()
    assert recorder.take_effects() == [Reply(1, FINE)]


def test_reply_waits_for_earlier_changes():
    recorder = EffectRecorder()
    recorder.changes.set_row(b"a", member(1))
    recorder.changes.reply(1, FINE)
    recorder.changes.flush()
    (write,) = recorder.take_effects()
    assert write == StoreRows({b"a": member(1)}, (Reply(1, FINE),))
    recorder.changes.reply(2, FINE)
    assert recorder.take_effects() == []
    recorder.changes.on_stored(write)
    assert recorder.take_effects() == [Reply(1, FINE), Reply(2, FINE)]
    assert recorder.changes.is_empty


def test_changes_during_write_go_into_next_write():
    recorder = EffectRecorder()
    recorder.changes.set_row(b"a", member(1))
    recorder.changes.flush()
    (first,) = recorder.take_effects()
    for number in (2, 3):
        recorder.changes.set_row(b"a", member(number))
        recorder.changes.set_group()
        recorder.changes.reply(number, FINE)
        recorder.changes.flush()
    assert recorder.take_effects() == []
    recorder.changes.on_stored(first)
    (second,) = recorder.take_effects()
    assert second == StoreRows(
        {b"a": member(3), GROUP: ConsumerGroupRow(1, 0, 1, b"", 0)},
        (Reply(2, FINE), Reply(3, FINE)),
    )


def test_failed_rows_are_retried_unless_changed_again():
    recorder = EffectRecorder()
    recorder.changes.set_row(b"a", member(1))
    recorder.changes.set_row(b"b", member(2))
    recorder.changes.reply(1, FINE)
    recorder.changes.flush()
    (write,) = recorder.take_effects()
    recorder.changes.set_row(b"a", None)
    recorder.changes.reply(2, FINE)
    recorder.changes.on_store_failed(write)
    assert [(effect.handle, effect.result.code) for effect in recorder.take_effects()] == [
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ]
    recorder.changes.flush()
    assert recorder.take_effects() == [StoreRows({b"a": None, b"b": member(2)})]


def test_refusal_has_only_error_code():
    recorder = EffectRecorder()
    recorder.changes.set_row(b"a", None)
    replies = [
        JoinResult(ErrorCode.NONE, "m", 3),
        SyncResult(ErrorCode.NONE, assignment=b"x"),
        FINE,
        HeartbeatResult(ErrorCode.INVALID_REQUEST, "why"),
    ]
    for handle, reply in enumerate(replies):
        recorder.changes.reply(handle, reply)
    recorder.changes.refuse_all(ErrorCode.NOT_COORDINATOR)
    refusals = [effect.result for effect in recorder.take_effects()]
    assert refusals[:2] == [
        JoinResult(ErrorCode.NOT_COORDINATOR, ""),
        SyncResult(ErrorCode.NOT_COORDINATOR),
    ]
    assert (refusals[2].code, refusals[2].epoch, refusals[2].assignment) == (
        ErrorCode.NOT_COORDINATOR,
        0,
        None,
    )
    assert refusals[3] is replies[3]


def test_closed_changes_write_nothing_and_keep_in_flight_keys():
    recorder = EffectRecorder()
    recorder.changes.set_row(b"a", member(1))
    recorder.changes.flush()
    (write,) = recorder.take_effects()
    recorder.changes.set_row(b"b", None)
    assert recorder.changes.keys() == {b"a", b"b"}
    recorder.changes.close()
    recorder.changes.on_stored(write)
    assert recorder.take_effects() == []
