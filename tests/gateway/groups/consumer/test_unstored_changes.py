"""Nobody is told what is not stored, one write is on its way at a time, and what failed goes with the next."""

from __future__ import annotations

from gateway.groups.classic.classic_member import JoinResult, SyncResult
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, HeartbeatResult
from gateway.groups.consumer.consumer_rows import ConsumerGroupRow
from gateway.groups.consumer.unstored_changes import UnstoredChanges
from gateway.groups.group_effects import Effect, Reply, StoreRows
from gateway.protocol.errors import ErrorCode

GROUP = b"group"
FINE = HeartbeatResult(ErrorCode.NONE, None, "m", 3)


class Told:
    """A ledger and what it has wanted done."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.rows = 0
        self.ledger = UnstoredChanges(self.effects, GROUP, self.row)

    def row(self) -> ConsumerGroupRow:
        self.rows += 1
        return ConsumerGroupRow(self.rows, 0, 1, b"", 0)

    def take(self) -> list[Effect]:
        taken = self.effects[:]
        self.effects.clear()
        return taken


def member(number: int) -> ConsumerGroupMember:
    return ConsumerGroupMember(number, f"m{number}")


def test_where_nothing_has_changed_the_answer_goes_at_once():
    told = Told()
    told.ledger.answer(1, FINE)
    told.ledger.flush()
    assert told.take() == [Reply(1, FINE)]


def test_an_answer_waits_for_what_changed_before_it():
    told = Told()
    told.ledger.mark(b"a", member(1))
    told.ledger.answer(1, FINE)
    told.ledger.flush()
    (write,) = told.take()
    assert write == StoreRows({b"a": member(1)}, (Reply(1, FINE),))
    told.ledger.answer(2, FINE)
    assert told.take() == []
    told.ledger.written(write)
    assert told.take() == [Reply(1, FINE), Reply(2, FINE)]
    assert told.ledger.is_clean


def test_what_changes_during_a_write_goes_with_the_next_one():
    told = Told()
    told.ledger.mark(b"a", member(1))
    told.ledger.flush()
    (first,) = told.take()
    for number in (2, 3):
        told.ledger.mark(b"a", member(number))
        told.ledger.mark_group()
        told.ledger.answer(number, FINE)
        told.ledger.flush()
    assert told.take() == []
    told.ledger.written(first)
    (second,) = told.take()
    assert second == StoreRows(
        {b"a": member(3), GROUP: ConsumerGroupRow(1, 0, 1, b"", 0)},
        (Reply(2, FINE), Reply(3, FINE)),
    )


def test_what_failed_goes_with_the_next_write_unless_it_has_changed_again():
    told = Told()
    told.ledger.mark(b"a", member(1))
    told.ledger.mark(b"b", member(2))
    told.ledger.answer(1, FINE)
    told.ledger.flush()
    (write,) = told.take()
    told.ledger.mark(b"a", None)
    told.ledger.answer(2, FINE)
    told.ledger.write_failed(write)
    assert [(effect.handle, effect.reply.code) for effect in told.take()] == [
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ]
    told.ledger.flush()
    assert told.take() == [StoreRows({b"a": None, b"b": member(2)})]


def test_a_refusal_of_any_request_says_nothing_but_its_code():
    told = Told()
    told.ledger.mark(b"a", None)
    replies = [
        JoinResult(ErrorCode.NONE, "m", 3),
        SyncResult(ErrorCode.NONE, assignment=b"x"),
        FINE,
        HeartbeatResult(ErrorCode.INVALID_REQUEST, "why"),
    ]
    for handle, reply in enumerate(replies):
        told.ledger.answer(handle, reply)
    told.ledger.refuse_all(ErrorCode.NOT_COORDINATOR)
    refusals = [effect.reply for effect in told.take()]
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


def test_one_that_is_closed_writes_no_more_and_knows_what_may_be_stored():
    told = Told()
    told.ledger.mark(b"a", member(1))
    told.ledger.flush()
    (write,) = told.take()
    told.ledger.mark(b"b", None)
    assert told.ledger.keys() == {b"a", b"b"}
    told.ledger.close()
    told.ledger.written(write)
    assert told.take() == []
