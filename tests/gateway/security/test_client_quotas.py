from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from gateway.coroutines import TimeSlices
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.security.client_quotas import ClientQuotas
from gateway.security.quotas import QuotaAlteration, QuotaEntity, entities_by_precedence
from storage.log import StorageFailed
from tests.fakes.broker import Started, ended
from tests.fakes.memory_store import MemoryStore

RATE = "producer_byte_rate"


def opened(store: MemoryStore | None = None, *, max_entities: int = 100) -> ClientQuotas:
    if store is None:
        store = MemoryStore()
        ended(store.open())
    made = ClientQuotas(ended(store.table("client-quotas")), max_entities=max_entities)
    ended(made.open())
    return made


def change(names, *values) -> QuotaAlteration:
    return QuotaAlteration(names, values)


def altered(made: ClientQuotas, *changes: QuotaAlteration, validate_only: bool = False):
    """Return the messages of errors, None for success."""
    errors = ended(made.alter(changes, TimeSlices(Clock()), validate_only=validate_only))
    return [None if error is None else error.message for error in errors.values()]


def test_most_specific_quota_applies() -> None:
    made = opened()
    levels = entities_by_precedence("alice", "app")
    for number, (entity, _) in enumerate(reversed(levels), 1):
        assert made.find(RATE, "alice", "app") == (
            None if number == 1 else (number - 1, levels[-number + 1][1])
        )
        altered(made, change(entity.names, (RATE, number)))
    assert made.find(RATE, "alice", "app") == (8, ("alice", "app"))
    assert made.find(RATE, "alice", "other") == (7, ("alice", "other"))
    assert made.find(RATE, "alice", "") == (6, ("alice", ""))
    assert made.find(RATE, "bob", "app") == (5, ("bob", "app"))
    assert made.find(RATE, "bob", "other") == (4, ("bob", "other"))
    assert made.find(RATE, "bob", "") == (3, ("bob", ""))


def test_each_quota_has_its_own_precedence() -> None:
    made = opened()
    altered(
        made,
        change({"user": "alice", "client-id": "app"}, ("consumer_byte_rate", 5)),
        change({"client-id": "app"}, (RATE, 7)),
    )
    assert made.find(RATE, "alice", "app") == (7, ("", "app"))
    assert made.find("consumer_byte_rate", "alice", "app") == (5, ("alice", "app"))


def test_quotas_survive_a_restart() -> None:
    store = MemoryStore()
    ended(store.open())
    made = opened(store)
    altered(
        made,
        change({"user": "u" * 300}, (RATE, 1024), ("request_percentage", 0.5)),
        change({"user": None, "client-id": "app"}, ("request_percentage", float("inf"))),
        change({"client-id": "gone"}, (RATE, 1)),
    )
    altered(made, change({"client-id": "gone"}, (RATE, None)))
    again = opened(store)
    assert dict(again) == {
        QuotaEntity("u" * 300, ""): {RATE: 1024, "request_percentage": 0.5},
        QuotaEntity(None, "app"): {"request_percentage": float("inf")},
    }
    assert (again.is_active, again.limits_time) == (True, True)


def test_quotas_are_active_while_there_are_any() -> None:
    made, changes = opened(), []
    made.watch(lambda: changes.append((made.is_active, made.limits_time)))
    altered(made, change({"user": "a"}, (RATE, 5)))
    altered(made, change({"user": "a"}, ("request_percentage", 5)))
    altered(made, change({"user": "a"}, ("request_percentage", None)))
    altered(made, change({"user": "a"}, (RATE, None)))
    assert changes == [(True, False), (True, True), (True, False), (False, False)]


def test_valid_changes_are_stored_beside_invalid_ones() -> None:
    made = opened()
    assert altered(
        made,
        change({"user": "a"}, (RATE, 5)),
        change({"user": "b"}, (RATE, 5), ("nonsense", 5)),
        change({"user": "c"}, ("nonsense", None)),
    ) == [None, "Invalid configuration key nonsense", None]
    assert dict(made) == {QuotaEntity("a", ""): {RATE: 5}}


def test_validation_stores_nothing() -> None:
    made = opened()
    assert altered(made, change({"user": "a"}, (RATE, 5)), validate_only=True) == [None]
    assert altered(made, change({"user": "a"}, (RATE, 0)), validate_only=True) == [
        "Quota producer_byte_rate must be greater than 0"
    ]
    assert len(made) == 0


def test_second_change_of_an_entity_is_an_error_but_the_first_is_made() -> None:
    made = opened()
    name = "Ignoring duplicate entity ClientQuotaEntity(entries={user=a})"
    assert altered(made, change({"user": "a"}, (RATE, 5)), change({"user": "a"}, (RATE, 6))) == [
        name
    ]
    assert dict(made) == {QuotaEntity("a", ""): {RATE: 5}}
    assert altered(made, change({"user": "a"}, (RATE, 7), (RATE, 8))) == [name]
    assert dict(made) == {QuotaEntity("a", ""): {RATE: 5}}


def test_similar_names_are_different_entities() -> None:
    made = opened()
    assert (
        altered(
            made,
            change({"client-id": "a, user=b"}, (RATE, 5)),
            change({"client-id": "a", "user": "b"}, (RATE, 6)),
            change({"user": "null"}, (RATE, 7)),
            change({"user": None}, (RATE, 8)),
        )
        == [None] * 4
    )
    assert len(made) == 4


def test_number_of_entities_is_limited() -> None:
    made = opened(max_entities=2)
    message = "at most max_client_quotas=2 entities may have quotas; remove some"
    assert altered(made, *(change({"user": name}, (RATE, 5)) for name in "abc")) == [
        None,
        None,
        message,
    ]
    assert altered(made, change({"user": "a"}, (RATE, 6))) == [None]
    assert altered(made, change({"user": "a"}, (RATE, None)), change({"user": "c"}, (RATE, 1))) == [
        None,
        message,
    ]
    assert altered(made, change({"user": "c"}, (RATE, 1))) == [None]


def test_failure_of_the_store_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened()

    async def fail(rows) -> None:
        raise StorageFailed("full")

    monkeypatch.setattr(made._table, "put", fail)
    with pytest.raises(KafkaError) as refusal:
        altered(made, change({"user": "a"}, (RATE, 5)))
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (len(made), made.is_active) == (0, False)
    monkeypatch.undo()
    assert altered(made, change({"user": "a"}, (RATE, 5))) == [None]


def test_changes_are_made_one_after_the_other() -> None:
    made, clock = opened(), Clock()
    many = [change({"user": str(number)}, (RATE, 5)) for number in range(60)]
    slices = TimeSlices(clock, 10)
    first = Started(made.alter(many, slices))
    second = Started(made.alter([change({"user": "0"}, (RATE, 9))], slices))
    first.cancel()
    while not second.is_done:
        clock.advance(0)
    assert len(made) == 60
    assert dict(made)[QuotaEntity("0", "")] == {RATE: 9}
