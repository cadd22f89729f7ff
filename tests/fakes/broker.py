"""A broker without sockets and threads: everything behind the handlers, on a store in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from gateway.broker import Broker
from gateway.cluster import Cluster
from gateway.coarse_clock import CoarseClock
from gateway.configs.broker_configs import BrokerConfigs
from gateway.configs.group_configs import GroupConfigs
from gateway.coroutines import Cancel, start
from gateway.fetch.conversion import Converter
from gateway.fetch.fetch_sessions import FetchSessions
from gateway.groups.consumer.topology import TopicView
from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.partitions.producer_ids import ProducerIds
from gateway.protocol.caller import Caller
from gateway.protocol.long_poll import LongPoll
from gateway.protocol.session import LoginSession
from gateway.settings.model import Settings
from gateway.topics.registry import Topics
from tests.fakes.memory_store import Medium, MemoryStore

#: Wall clock time at the start of a test, in ms since 1970.
NOW = 1_700_000_000_000


class Started:
    """A running coroutine: `is_done`, and its `result`, which raises its failure."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._outcome: list[Any] = []
        self._failure: list[BaseException] = []
        self._cancel: Cancel | None = start(work, self._outcome.append, self._failure.append)

    @property
    def is_done(self) -> bool:
        return bool(self._outcome or self._failure)

    @property
    def failure(self) -> BaseException | None:
        return self._failure[0] if self._failure else None

    @property
    def result(self) -> Any:
        if self._failure:
            raise self._failure[0]
        assert self._outcome, "the coroutine is still waiting"
        return self._outcome[0]

    def cancel(self) -> None:
        """Cancel it, as when the connection of a request closes."""
        if self._cancel is not None:
            self._cancel()


def ended(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that does not wait."""
    return Started(work).result


class Threads:
    """Replaces the worker threads.

    Calls run at once unless they are held until `release()`. `calls` counts them.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._is_held = False
        self._waiting: list[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def hold(self) -> None:
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        while self._waiting:
            told, function, arguments = self._waiting.pop(0)
            if told.called:
                continue
            try:
                result = function(*arguments)
            except Exception as failure:
                told.errback(failure)
            else:
                told.callback(result)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
        self.calls += 1
        told: Deferred[Any] = Deferred()
        self._waiting.append((told, function, arguments))
        if not self._is_held:
            self.release()
        return told

    def run_for(
        self, owner: object, function: Callable[..., Any], *arguments: Any
    ) -> Awaitable[Any]:
        return self.run(function, *arguments)


@dataclass(slots=True)
class BrokerEnvironment:
    """A broker and its fakes.

    `bugs` are failures of background work; there must be none. `step_ms` is how far the wall clock
    was set forward.
    """

    broker: Broker
    store: MemoryStore
    clock: Clock
    threads: Threads
    bugs: list[BaseException] = field(default_factory=list)
    step_ms: int = 0
    #: The long poll state of the callers' connection.
    long_poll: LongPoll = field(default_factory=LongPoll)

    def caller(self, version: int, client_id: str | None = "test") -> Caller:
        """A client on a listener without login."""
        return Caller(
            self.broker,
            LoginSession(None),
            "127.0.0.1:50000",
            "PLAINTEXT",
            version,
            client_id,
            self.long_poll,
        )

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        start(work, lambda _: None, self.bugs.append)

    def topic(self, name: str = "orders", partitions: int = 1, **configs: str) -> Any:
        """Create a topic. Dots in config names are written as underscores."""
        return ended(
            self.broker.topics.create(
                name, partitions, {key.replace("_", "."): value for key, value in configs.items()}
            )
        )

    def partition(self, name: str | bytes = "orders", index: int = 0) -> Any:
        return ended(self.broker.topics.partition(name, index))

    def now(self) -> int:
        return NOW + self.step_ms + int(self.clock.seconds() * 1000)


def open_environment(
    medium: Medium | None = None,
    *,
    clock: Clock | None = None,
    threads: Threads | None = None,
    **settings: Any,
) -> BrokerEnvironment:
    """A broker on a new store, or on what another one left on `medium`."""
    store = MemoryStore(medium)
    ended(store.open())
    clock = clock or Clock()
    threads = threads or Threads()
    made: list[BrokerEnvironment] = []

    def now() -> int:
        return made[0].now() if made else NOW + int(clock.seconds() * 1000)

    def background(work: Coroutine[Any, Any, None]) -> None:
        made[0].background(work)

    values = Settings(**settings)
    deadlines = CoarseClock(clock)
    configs = BrokerConfigs(ended(store.table("broker-configs")), values)
    ended(configs.open())
    topics = Topics(store, configs.settings, clock, now, background)
    ended(topics.open())
    configs.watch(topics.apply_settings)
    producer_ids = ProducerIds(ended(store.table("producer-ids")))
    ended(producer_ids.open())
    offsets = CommittedOffsets(
        ended(store.table("offsets")),
        topics,
        values,
        deadlines,
        store.note_committed,
        topics_may_return=store.retains_by_itself,
    )
    ended(offsets.open())
    ids = iter(range(1, 1 << 31))
    member_ids = (f"id-{number}" for number in range(1, 1 << 31))
    topology = TopicView(topics, values.group_consumer_regex_max_bytes)
    group_configs = GroupConfigs(ended(store.table("group-configs")), values)
    ended(group_configs.open())
    table, of_group = ended(store.table("groups")), group_configs.settings_of
    groups = GroupCoordinator(
        table, topology, values, clock, now, lambda: next(member_ids), background, of_group
    )
    ended(groups.open())
    broker = Broker(
        configs,
        group_configs,
        store,
        Cluster(values.node_id, "AAAAAAAAAAAAAAAAAAAAAA", {"PLAINTEXT": ("127.0.0.1", 9092)}),
        topics,
        FetchSessions(values.max_incremental_fetch_session_cache_slots, lambda: next(ids)),
        producer_ids,
        offsets,
        groups,
        Converter(
            threads.run_for,
            cache_bytes=values.conversion_cache_bytes,
            max_decompressed_bytes=values.max_decompressed_bytes,
        ),
        clock,
        deadlines,
        now,
        threads.run,
        threads.run_for,
    )
    made.append(BrokerEnvironment(broker, store, clock, threads))
    return made[0]
