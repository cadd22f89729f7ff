"""Random appends, compactions, deletions, trims and restarts, compared with a list of entries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.log import Entry
from storage.pulsar.compaction import range_merge
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.store import PulsarStore
from tests.contract.test_model import LogMachine
from tests.storage.open_shards import open_with_shards
from tests.testkit.settle import in_own_greenlet, settle
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

STEPS = 25


class ReopeningStores:
    """Opens stores one after the other in the same namespaces."""

    def __init__(self, settings: PulsarSettings) -> None:
        self.settings = settings

    def store(self) -> PulsarStore:
        return PulsarStore(self.settings, reactor=reactor)


class TrimmingMachine(LogMachine):
    """The contract's state machine, with ledger ends and compaction mostly at the log start."""

    tenant: Tenant
    bench: Any
    freed: list[int]
    append_to_a_medium_that_refuses = None

    @property
    def path(self) -> str:
        settings = self.bench.settings
        return f"persistent/{settings.tenant}/{settings.namespace}/orders-partition-0"

    @rule(times=st.lists(st.integers(-1, 20), min_size=2, max_size=5))
    def fill_ledger(self, times: list[int]) -> None:
        for time in times:
            entry = self.drawn(self.end, 3, time, 1000)
            settle(self.log.append([entry]))
            self.end += 3
            self.entries.append(entry)
        self.tenant.admin("PUT", f"{self.path}/unload")

    @precondition(lambda self: len(self.entries) > 2)
    @rule(share=st.floats(0.3, 1), kept=st.sets(st.integers(0, 100), max_size=4))
    def compact_the_beginning(self, share: float, kept: set[int]) -> None:
        gone = self.entries[: max(1, int(share * (len(self.entries) - 1)))]
        left = [
            Entry(one.base_offset, one.last_offset, one.max_timestamp, b"less")
            for n, one in enumerate(gone)
            if n in kept
        ]
        settle(self.log.replace(gone[0].base_offset, gone[-1].last_offset, left))
        self.entries = [*left, *self.entries[len(gone) :]]

    @rule()
    def reclaim(self) -> None:
        before = self.tenant.admin("GET", f"{self.path}/internalStats")["totalSize"]
        settle(self.log.reclaim())
        self.freed.append(
            before - self.tenant.admin("GET", f"{self.path}/internalStats")["totalSize"]
        )

    @rule()
    def take_over(self) -> None:
        old = self.store
        self.store = self.bench.store()
        settle(open_with_shards(self.store, takeover=True))
        self.log = settle(self.store.log("orders", 0))
        settle(old.close())


@pytest.mark.parametrize("examples", [4, pytest.param(8, marks=pytest.mark.slow)])
@ensureDeferred
async def test_trimmed_log_behaves_like_list_of_entries(pulsar, monkeypatch, examples):
    monkeypatch.setattr(range_merge, "MIN_RANGES", 2)
    monkeypatch.setattr(range_merge, "COPY_BYTES", 3000)
    freed: list[int] = []
    made = {
        "new_bench": lambda self: ReopeningStores(pulsar.settings(lowered_seconds=300.0)),
        "tenant": pulsar,
        "freed": freed,
    }
    machine = type("Machine", (TrimmingMachine,), made)
    # Generated examples may or may not trim a ledger; this one does.
    await in_own_greenlet(lambda: trims_a_ledger(machine()))
    assert max(freed) > 0
    limits = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    await in_own_greenlet(lambda: run_state_machine_as_test(machine, settings=limits))


def trims_a_ledger(machine: TrimmingMachine) -> None:
    machine.open_a_log()
    machine.fill_ledger([1, 2])
    machine.fill_ledger([3, 4])
    machine.delete_before(0.6)
    machine.reclaim()
    machine.the_log_is_as_the_model()
    machine.teardown()
