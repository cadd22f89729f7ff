"""A broker without sockets and threads: everything behind the handlers, on a store in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from auth.mechanism import Principal
from gateway.app import IdSource, open_broker
from gateway.broker import Broker
from gateway.cluster.forwarding import LOCAL_CONTROLLER, ControllerAccess
from gateway.coroutines import Cancel, TimeSlices, start
from gateway.net.flow_control import OutgoingBytes
from gateway.protocol.caller import Caller
from gateway.protocol.long_poll import LongPoll, acknowledge_nothing
from gateway.protocol.session import LoginSession
from gateway.security.quotas import QuotaAlteration
from gateway.security.tenants import Tenants
from gateway.settings.model import Settings
from tests.fakes.memory_store import DEFAULT_NAMESPACE, Medium, MemoryStore

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
    long_poll: LongPoll = field(default_factory=lambda: LongPoll(acknowledge_nothing))
    #: The callers' log-in.
    session: LoginSession = field(default_factory=lambda: LoginSession(None))

    def bound_to(self, namespace: str) -> BrokerEnvironment:
        """The same broker, called by `User:app`, which is bound to a namespace."""
        session = LoginSession(None, tenants=Tenants(DEFAULT_NAMESPACE[:-1], [namespace]))
        session.identify(Principal("User", "app", namespace))
        return replace(self, session=session, long_poll=LongPoll(acknowledge_nothing))

    def caller(self, version: int, client_id: str | None = "test") -> Caller:
        """A client on a listener without log-in, or as `bound_to`."""
        return Caller(
            self.broker,
            self.session,
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

    def set_quota(self, key: str, value: float | None, **names: str | None) -> None:
        """Set a quota; `names` are `user` and `client_id`, None for the default."""
        asked = QuotaAlteration(
            {kind.replace("_", "-"): name for kind, name in names.items()}, [(key, value)]
        )
        errors = ended(self.broker.client_quotas.alter([asked], TimeSlices(self.clock)))
        assert list(errors.values()) == [None]

    def now(self) -> int:
        return NOW + self.step_ms + int(self.clock.seconds() * 1000)


def open_environment(
    medium: Medium | None = None,
    *,
    clock: Clock | None = None,
    threads: Threads | None = None,
    shard_count: int = 1,
    controller: ControllerAccess = LOCAL_CONTROLLER,
    **settings: Any,
) -> BrokerEnvironment:
    """A broker on a new store, or on what another one left on `medium`."""
    store = MemoryStore(medium, shard_count)
    ended(store.open())
    clock = clock or Clock()
    threads = threads or Threads()
    made: list[BrokerEnvironment] = []
    bugs: list[BaseException] = []

    def now() -> int:
        return made[0].now() if made else NOW + int(clock.seconds() * 1000)

    def background(work: Coroutine[Any, Any, None]) -> None:
        start(work, lambda _: None, bugs.append)

    ids = IdSource(
        lambda: "AAAAAAAAAAAAAAAAAAAAAA",
        (f"id-{number}" for number in count(1)).__next__,
        count(1).__next__,
    )
    broker = ended(
        open_broker(
            Settings(**settings),
            store,
            {"PLAINTEXT": ("127.0.0.1", 9092)},
            clock,
            threads.run,
            threads.run_for,
            background,
            OutgoingBytes(),
            now,
            ids,
            controller,
        )
    )
    made.append(BrokerEnvironment(broker, store, clock, threads, bugs))
    return made[0]
