"""Throttle times by client. With 11 samples of 1 s a quota allows ten times its value at once."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from gateway.coroutines import TimeSlices
from gateway.security import quota_usage as module
from gateway.security.client_quotas import ClientQuotas
from gateway.security.quota_usage import QuotaUsage, RequestUsage
from gateway.security.quotas import QuotaAlteration
from tests.fakes.broker import ended
from tests.fakes.memory_store import MemoryStore


class SpentTime:
    def __init__(self, ns: int) -> None:
        self.ns = ns

    def total_ns(self) -> int:
        return self.ns


class CountedClients:
    """Quotas and their usage, at a time in ms that tests set."""

    def __init__(self, *quotas: tuple[dict[str, str | None], str, float]) -> None:
        store = MemoryStore()
        ended(store.open())
        self.quotas = ClientQuotas(ended(store.table("client-quotas")), max_entities=1000)
        self.now = 0
        self.usage = QuotaUsage(self.quotas, samples=11, sample_seconds=1, now=lambda: self.now)
        self.set(*quotas)

    def set(self, *quotas: tuple[dict[str, str | None], str, float | None]) -> None:
        for names, key, value in quotas:
            asked = [QuotaAlteration(names, [(key, value)])]
            errors = ended(self.quotas.alter(asked, TimeSlices(Clock())))
            assert set(errors.values()) == {None}

    def request(
        self, user: str = "alice", client_id: str | None = "app", size: int = 0, ns: int = 0
    ) -> RequestUsage:
        return RequestUsage(self.usage, self.usage.client(user, client_id), size, SpentTime(ns))

    def produce(self, size: int, *, has_reply: bool = True, **client: Any) -> int:
        return self.request(size=size, **client).count_produce(has_reply=has_reply)

    def fetch(self, size: int, **client: Any) -> int:
        return self.request(**client).count_fetch(size)

    def call(self, ns: int, *, is_exempt: bool = False, **client: Any) -> int:
        return self.request(ns=ns, **client).count_request(is_exempt=is_exempt)


PRODUCE, FETCH, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
ALICE: dict[str, str | None] = {"user": "alice"}


def test_produce_over_its_quota_is_throttled() -> None:
    counted = CountedClients((ALICE, PRODUCE, 100))
    assert [counted.produce(500), counted.produce(500), counted.produce(1)] == [0, 0, 10]


def test_throttled_fetch_does_not_count() -> None:
    counted = CountedClients((ALICE, FETCH, 100))
    assert [counted.fetch(1500), counted.fetch(1500), counted.fetch(1000)] == [5000, 5000, 0]


def test_reply_may_hold_what_a_window_allows() -> None:
    # ClientQuotaManager.getMaxValueInQuotaWindow: the quota for 10 s.
    counted = CountedClients((ALICE, FETCH, 100))
    assert counted.request().max_fetch_bytes == 1000
    assert counted.request("bob").max_fetch_bytes == 2**31 - 1
    counted.set((ALICE, FETCH, 1e12))
    assert counted.request().max_fetch_bytes == 2**31 - 1


def test_time_is_counted_in_percent_of_one_thread() -> None:
    # 1 s of 10 s are 10 %: at a quota of 8 %, (10 - 8) / 8 * 10 s, at most the sample of 1 s.
    counted = CountedClients((ALICE, TIME, 10))
    assert counted.call(1_000_000_000) == 0
    counted.set((ALICE, TIME, 8))
    assert counted.call(0) == 1000
    counted.set((ALICE, TIME, 9.9))
    assert counted.call(0) == 101


def test_longer_throttle_time_of_both_quotas_applies() -> None:
    counted = CountedClients((ALICE, PRODUCE, 100), (ALICE, TIME, 1), (ALICE, FETCH, 100))
    # 150 ms of 10 s are 1.5 %: 5 s, at most 1 s.
    assert counted.produce(1005, ns=150_000_000) == 1000
    assert counted.produce(1000, ns=0) == 10_050
    assert counted.fetch(900) == 1000
    counted.set((ALICE, TIME, None))
    assert counted.fetch(1000) == 0


def test_time_of_produce_without_reply_and_of_exempt_requests_does_not_count() -> None:
    counted = CountedClients((ALICE, TIME, 1), (ALICE, PRODUCE, 100))
    assert counted.produce(10, has_reply=False, ns=10**9) == 0
    assert counted.produce(1000, has_reply=False, ns=10**9) == 100
    assert counted.call(10**9, is_exempt=True) == 0
    assert counted.call(0) == 0


def test_request_is_counted_once() -> None:
    counted = CountedClients((ALICE, TIME, 1))
    request = counted.request(ns=101_000_000)
    assert request.count_fetch(0) == 100
    assert request.count_request(is_exempt=False) == request.throttle_ms == 100
    assert counted.call(0) == 100


def test_time_after_the_throttle_time_is_decided_counts_for_later_requests() -> None:
    counted = CountedClients((ALICE, TIME, 1))
    request = counted.request(ns=100_000_000)
    assert request.count_request(is_exempt=False) == 0
    request.count_later_time(1_000_000)
    assert counted.call(0) == 100


@pytest.mark.parametrize(
    ("names", "sharing", "separate"),
    [
        ({"user": "alice"}, ("alice", "other"), ("bob", "app")),
        ({"user": None}, ("alice", "other"), ("bob", "app")),
        ({"client-id": "app"}, ("bob", "app"), ("alice", "other")),
        ({"client-id": None}, ("bob", "app"), ("alice", "other")),
        ({"user": "alice", "client-id": "app"}, ("alice", "app"), ("alice", "other")),
        ({"user": None, "client-id": None}, ("alice", "app"), ("bob", "app")),
        ({"user": "alice", "client-id": None}, ("alice", "app"), ("alice", "other")),
        ({"user": None, "client-id": "app"}, ("alice", "app"), ("bob", "app")),
    ],
)
def test_quota_is_shared_as_in_kafka(names, sharing, separate) -> None:
    counted = CountedClients((names, PRODUCE, 100))
    assert counted.produce(2000) == 10_000
    assert counted.produce(0, user=sharing[0], client_id=sharing[1]) == 10_000
    assert counted.produce(0, user=separate[0], client_id=separate[1]) == 0


def test_client_without_client_id_is_counted_by_user() -> None:
    counted = CountedClients((ALICE, PRODUCE, 100), ({"client-id": None}, PRODUCE, 1))
    assert counted.produce(2000, client_id=None) == 10_000
    assert counted.produce(0, client_id="") == 10_000
    assert not counted.usage.client("bob", None).is_limited


def test_change_of_a_quota_applies_to_what_was_counted() -> None:
    counted = CountedClients((ALICE, PRODUCE, 100))
    assert counted.produce(1000) == 0
    version = counted.usage.version
    counted.set((ALICE, PRODUCE, 50))
    assert counted.usage.version != version
    assert counted.produce(0) == 10_000


def test_number_of_counted_clients_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTED", 20)
    monkeypatch.setattr(module, "EVICTED", 5)
    counted = CountedClients(({"client-id": None}, PRODUCE, 100))
    counted.produce(2000, client_id="first")
    for number in range(200):
        counted.now += 1
        counted.produce(2000, client_id=str(number))
        assert len(counted.usage) <= 20
    # The least recently used ones are forgotten, those in use are not.
    assert counted.produce(0, client_id="199") > 0
    assert counted.produce(0, client_id="first") == 0


def test_counters_that_are_forgotten_are_not_used_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_COUNTED", 1)
    counted = CountedClients(({"client-id": None}, PRODUCE, 100))
    kept = counted.usage.client("alice", "app")
    assert kept.version == counted.usage.version
    counted.produce(1, client_id="other")
    assert kept.version != counted.usage.version


def test_idle_clients_are_forgotten_after_an_hour() -> None:
    counted = CountedClients(({"client-id": None}, PRODUCE, 100))
    counted.produce(1, client_id="idle")
    counted.now = 3_000_000
    counted.produce(1, client_id="active")
    counted.now = 3_600_001
    counted.produce(1, client_id="new")
    assert len(counted.usage) == 2


def test_long_names_are_counted_separately_but_not_kept() -> None:
    clients = CountedClients(({"user": None, "client-id": None}, PRODUCE, 100))
    one, other = "x" * 32_767, "x" * 32_766 + "y"
    assert clients.produce(2000, client_id=one) > 0
    assert clients.produce(900, client_id=other) == 0
    assert clients.produce(1, client_id=one) > 0
    assert len(clients.usage) == 2
    kept = [name for _, names in clients.usage._counters for name in names]
    assert max(map(len, kept)) <= 300
