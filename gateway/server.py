"""The server: listeners, the connections on them, and its life from the line `ready` to the drain at the end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from auth.mechanism import AuthenticationBusy
from auth.tls import TlsContextFactory, TlsError
from auth.users import UsersFileError
from compat.records import KERNEL, KERNEL_REASON
from gateway import handlers as handlers  # importing them routes them
from gateway import logs, memory
from gateway.app import make_mechanisms, make_tls, open_broker
from gateway.broker import Broker
from gateway.coroutines import Waiter, shield_with_timeout, start
from gateway.housekeeping import Housekeeping
from gateway.net.connection import Sweep, overdue_connections
from gateway.net.flow_control import LoginBudget, MemoryBudget, OutgoingBytes
from gateway.net.listeners import ConnectionLimits, Listener, TlsListener
from gateway.net.transport import Port
from gateway.protocol.wire import compiled
from gateway.settings.addresses import Endpoint
from gateway.settings.model import Settings
from gateway.settings.stores import make_store
from gateway.workers import FairWorkers, TooManyWaiting
from storage.log import NotReady, StorageError, Store

__all__ = ["run"]

_log = logs.get_logger(__name__)

#: How often connections are looked at for idleness and deadlines, in seconds: the grain of those limits.
SWEEP_SECONDS = 1.0

#: In so many steps: to look at ten thousand connections takes some 20 ms, and far more on a busy machine.
SWEEP_STEPS = 20

#: Connections that the kernel may hold before they are accepted: a storm of reconnects after a restart.
BACKLOG = 4096


#: What closing the store may take at least, in seconds, when the drain has used up its time, and the traffic log at most: within the 10 s of
#: container runtimes all the same.
CLOSE_SECONDS = 1.5


#: Between two attempts to open a store that is not ready, in seconds; twice as long each time.
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 8.0

#: Bytes of unfinished frames on all connections that are not logged in: 256 of the largest tokens.
MAX_LOGIN_BYTES = 16 << 20

Listeners = list[tuple[Endpoint, Listener, TlsContextFactory | None]]

#: What is listened on, and what clients are told of it, by listener.
BoundListeners = tuple[list[Endpoint], dict[str, tuple[str, int]]]


class StartupError(Exception):
    """The server could not start; the message says why and what to do."""


class GatewayServer:
    """A gateway process. `lost` is called when somebody else takes its store away: it can only be drained then."""

    def __init__(self, settings: Settings, reactor: Any, lost: Callable[[str], None]) -> None:
        self._settings = settings
        self._reactor = reactor
        self._limits = ConnectionLimits(settings)
        self._budget = MemoryBudget(settings.max_in_flight_bytes, reactor)
        self._login_budget = LoginBudget(MAX_LOGIN_BYTES)
        self._outgoing = OutgoingBytes(settings.max_in_flight_bytes)
        self._store = self._make_store()
        self._lost = lost
        self._conversions = FairWorkers(reactor, settings.conversion_threads, "convert")
        self._password_checks = FairWorkers(
            reactor,
            settings.sasl_check_threads,
            "check",
            max_waiting=settings.sasl_max_waiting_checks,
        )
        self._ports: list[Any] = []
        self._connection_sweep = Sweep(self._limits.connections, SWEEP_STEPS)
        self._sweep_loop = LoopingCall(self._close_overdue)
        self._sweep_loop.clock = reactor
        self._trim_loop = LoopingCall(memory.HeapTrimmer().end_interval)
        self._trim_loop.clock = reactor
        self._housekeeping: Housekeeping | None = None
        self._broker: Broker | None = None
        self._is_store_open = False
        self._is_store_lost = False
        self._is_draining = False

    def _make_store(self) -> Store:
        store = make_store(self._settings, self._reactor)
        store.when_lost(self._store_lost)
        return store

    def _store_lost(self, reason: str) -> None:
        self._is_store_lost = True
        self._lost(reason)

    async def start(self) -> list[Endpoint]:
        """Open the store and the listeners; the addresses that they are bound to. Raises StartFailed."""
        try:
            listeners = self._make_listeners()
            broker, bound = await self._open(listeners)
        except (StorageError, TlsError, UsersFileError, ValueError) as failure:
            raise StartupError(str(failure)) from failure
        self._broker = broker
        broker.configs.watch(self._limits.update)
        self._limits.update(broker.settings)
        for _, listener, _ in listeners:
            listener.broker = broker
        for port in self._ports:
            port.startReading()
        self._sweep_loop.start(SWEEP_SECONDS / SWEEP_STEPS, now=False)
        self._trim_loop.start(memory.TRIM_INTERVAL_SECONDS, now=False)
        self._housekeeping = Housekeeping(broker, self._run_in_background)
        self._housekeeping.start()
        if KERNEL != "cython":
            _log.warning(
                "records are converted in plain Python, some 50 times slower", reason=KERNEL_REASON
            )
        elif compiled.KERNEL != "cython":
            _log.warning(
                "produce requests are read in plain Python, at a fifth more of the cost",
                remedy="install again; in a checkout make clean first",
            )
        return bound

    async def _open(self, listeners: Listeners) -> tuple[Broker, list[Endpoint]]:
        """The store, the addresses and what is between them. Tried again as long as the store is not ready and there is time."""
        deadline = self._reactor.seconds() + self._settings.pulsar_start_timeout_ms / 1000
        pause = MIN_RETRY_SECONDS
        bound: BoundListeners | None = None
        while True:
            try:
                await self._store.open()
                self._is_store_open = True
                bound = bound or self._bind(listeners)
                return await self._open_broker(bound[1]), bound[0]
            except NotReady as failure:
                left = deadline - self._reactor.seconds()
                if left <= 0 or self._is_draining:
                    raise
                reason = "; ".join(str(failure).splitlines())
                _log.warning(
                    "the store is not ready, and is tried again",
                    seconds_left=round(left),
                    reason=reason,
                )
            await self._discard_store()
            await Waiter(self._reactor).wait(min(pause, left))
            if self._is_draining:
                raise StartupError("the gateway was told to end while it started")
            pause = min(2 * pause, MAX_RETRY_SECONDS)
            self._store = self._make_store()

    def _open_broker(self, advertised: dict[str, tuple[str, int]]) -> Coroutine[Any, Any, Broker]:
        return open_broker(
            self._settings,
            self._store,
            advertised,
            self._reactor,
            self._conversions.run,
            self._conversions.run_for,
            self._run_in_background,
            self._outgoing,
        )

    async def _discard_store(self) -> None:
        if self._is_store_open:
            await self._store.close()
            self._is_store_open = False

    def _make_listeners(self) -> Listeners:
        settings = self._settings
        protocols = {
            endpoint.name: settings.security_protocol(endpoint.name)
            for endpoint in settings.listeners
        }
        mechanisms = (
            make_mechanisms(settings, self._check_password)
            if any(p.has_sasl for p in protocols.values())
            else None
        )
        tls = make_tls(settings) if any(p.has_tls for p in protocols.values()) else None
        made = []
        for endpoint in settings.listeners:
            protocol = protocols[endpoint.name]
            listener = Listener(
                endpoint.name,
                self._limits,
                self._budget,
                self._login_budget,
                mechanisms if protocol.has_sasl else None,
            )
            made.append((endpoint, listener, tls if protocol.has_tls else None))
        return made

    def _bind(self, listeners: Listeners) -> BoundListeners:
        bound = []
        for endpoint, listener, tls in listeners:
            factory: Any = listener
            if tls is not None:
                factory = TlsListener(tls, False, listener)
            port = Port(
                endpoint.port, factory, BACKLOG, endpoint.host, self._reactor, self._outgoing
            )
            try:
                port.startListening()
            except CannotListenError as failure:
                raise StartupError(
                    f"cannot listen on {endpoint}: {failure.socketError}"
                ) from failure
            # Nothing is accepted before there is a broker to serve it; until then the kernel holds the connections.
            port.stopReading()
            self._ports.append(port)
            bound.append(Endpoint(endpoint.name, endpoint.host, port.getHost().port))
        return bound, {endpoint.name: self._advertised(endpoint) for endpoint in bound}

    def _advertised(self, bound: Endpoint) -> tuple[str, int]:
        """What clients of this listener are told: what the settings say, port 0 standing for the bound one; otherwise what is bound."""
        told = self._settings.advertised_for(bound.name) or bound
        return told.host, told.port or bound.port

    async def drain(self) -> None:
        """Stop accepting, answer what is owed, write what is queued; within `shutdown_timeout_ms`, then regardless."""
        self._is_draining = True
        deadline = self._reactor.seconds() + self._settings.shutdown_timeout_ms / 1000
        for port in self._ports:
            await port.stopListening()
        for loop in (self._sweep_loop, self._trim_loop):
            if loop.running:
                loop.stop()
        if self._housekeeping is not None:
            self._housekeeping.stop()
        if self._broker is not None:
            self._broker.interruptible_waits.end()
            self._broker.groups.close()
            await self._drain_connections(deadline)
            await self._broker.traffic.close(CLOSE_SECONDS)
            if not self._is_store_lost:
                await self._save_within(deadline)
        if self._is_store_open:
            await self._close_store(deadline)
        await self._close_workers(deadline)

    async def _close_workers(self, deadline: float) -> None:
        """A call cannot be broken off: one that takes longer ends with the process."""
        for workers in (self._conversions, self._password_checks):
            with suppress(TimeoutError):
                await shield_with_timeout(
                    self._reactor, max(deadline - self._reactor.seconds(), 0), workers.close()
                )

    async def _save_within(self, deadline: float) -> None:
        left = max(deadline - self._reactor.seconds(), CLOSE_SECONDS)
        try:
            await shield_with_timeout(self._reactor, left, self._save_snapshots())
        except (StorageError, TimeoutError) as failure:
            # The next start reads it from the logs.
            _log.warning(
                "producer snapshots not written", reason=str(failure) or "the store takes too long"
            )

    async def _save_snapshots(self) -> None:
        if self._broker is not None:
            await self._broker.topics.save_all()

    async def _close_store(self, deadline: float) -> None:
        try:
            await shield_with_timeout(
                self._reactor,
                max(deadline - self._reactor.seconds(), CLOSE_SECONDS),
                self._store.close(),
            )
        except TimeoutError:
            _log.warning("store cut off at the end of the drain")

    async def _drain_connections(self, deadline: float) -> None:
        while self._limits.connections:
            for connection in list(self._limits.connections):
                connection.drain()
            if not self._limits.connections:
                return
            left = deadline - self._reactor.seconds()
            if left <= 0:
                _log.warning(
                    "connections cut off at the end of the drain",
                    connections=len(self._limits.connections),
                )
                for connection in list(self._limits.connections):
                    connection.abort()
                return
            await Waiter(self._reactor).wait(min(left, 0.02))

    def _close_overdue(self) -> None:
        for connection, reason in overdue_connections(
            self._connection_sweep.step(), self._reactor.seconds()
        ):
            connection.close_overdue(reason)

    def _check_password(self, host: str, check: Callable[[], bool]) -> Deferred[bool]:
        return self._password_checks.run_for(host, check).addErrback(_to_authentication_busy)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        start(
            work, lambda _: None, lambda failure: _log.bug("work in the background failed", failure)
        )


def _to_authentication_busy(failure: Failure) -> NoReturn:
    failure.trap(TooManyWaiting)
    raise AuthenticationBusy("too many password checks wait already")


def run(settings: Settings, reactor: Any) -> int:
    """Serve until SIGTERM or SIGINT. The process's exit code: 0 after a drain, 1 where it could not start or lost its store."""
    memory.configure_allocator()
    outcome = 0
    is_ending = False

    def end() -> None:
        if not is_ending:
            reactor.stop()

    def lost(reason: str) -> None:
        nonlocal outcome
        outcome = 1
        _log.error(
            "the store is lost: nothing can be written any more, and the gateway ends",
            reason=reason,
        )
        end()

    server = GatewayServer(settings, reactor, lost)

    def started(bound: list[Endpoint]) -> None:
        memory.freeze_startup_objects()
        addresses = ",".join(map(str, bound))
        sys.stdout.write(
            f"ready listeners={addresses} store={settings.store} node={settings.node_id}\n"
        )
        sys.stdout.flush()

    def failed(failure: BaseException) -> None:
        nonlocal outcome
        if is_ending:
            # Its store was closed under it, or it gave up: nobody wants it to start any more.
            return
        outcome = 1
        if isinstance(failure, StartupError):
            # What a store misses of its cluster may be several things, each with its remedy.
            for reason in str(failure).splitlines() or [""]:
                _log.error("cannot start", reason=reason)
        else:
            _log.bug("cannot start", failure)
        end()

    def drain() -> Deferred[None]:
        nonlocal is_ending
        is_ending = True
        began = reactor.seconds()
        # The reactor would complain of a second one.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        done: Deferred[None] = Deferred()

        def broken(failure: BaseException) -> None:
            nonlocal outcome
            outcome = 1
            _log.bug("the drain failed", failure)
            done.callback(None)

        def drained(_: None) -> None:
            if outcome == 0:
                # Otherwise the log ends with what went wrong.
                _log.info("stopped", seconds=round(reactor.seconds() - began, 3))
            done.callback(None)

        start(server.drain(), drained, broken)
        return done

    reactor.addSystemEventTrigger("before", "shutdown", drain)
    reactor.callWhenRunning(start, server.start(), started, failed)
    reactor.run()
    return outcome
