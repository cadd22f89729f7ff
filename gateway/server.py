"""The gateway process: its listeners and connections, from start to the drain at shutdown."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from errno import EADDRINUSE
from typing import Any, NoReturn, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError, ReactorNotRunning
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from auth.mechanism import AuthenticationBusy
from auth.scram import ScramCredentialSource
from auth.tls import TlsContextFactory, TlsError
from auth.users import UsersFileError
from gateway import handlers as handlers  # registers their routes
from gateway import logs, memory
from gateway.app import make_principal_rules, make_tls, open_broker
from gateway.broker import Broker
from gateway.coroutines import shield_with_timeout, sleep, start
from gateway.housekeeping import Housekeeping
from gateway.net.connection import Sweep, overdue_connections
from gateway.net.drain import close_between_requests, wait_until_quiet
from gateway.net.flow_control import LoginBudget, MemoryBudget, OutgoingBytes
from gateway.net.listeners import ConnectionLimits, Listener, TlsListener
from gateway.net.proxy_listener import ProxyListener
from gateway.net.transport import Port
from gateway.protocol.wire import compiled
from gateway.security.mechanisms import make_key_download, make_mechanisms
from gateway.settings.addresses import Endpoint
from gateway.settings.model import Settings
from gateway.stores import make_store
from gateway.workers import FairWorkers, TooManyWaiting
from records import KERNEL, KERNEL_REASON
from storage.log import NotReady, StorageError, Store

__all__ = ["run"]

_log = logs.get_logger(__name__)

T = TypeVar("T")

#: Seconds between two checks of a connection for idleness and deadlines: the precision of these
#: limits.
SWEEP_SECONDS = 1.0

#: A round has one step per 100 connections, at most 20. Checking ten thousand connections takes
#: about 20 ms, and much longer on a busy machine.
SWEEP_STEPS = 20
SWEEP_ITEMS_PER_STEP = 100

#: Connections that the kernel queues until they are accepted: many clients reconnect at once after
#: a restart.
BACKLOG = 4096

#: Seconds for closing the store if the drain has used up its time, and at most for the traffic log.
#: Together they fit in the 10 s that container runtimes allow.
CLOSE_SECONDS = 1.5

#: Longest wait for a controller at the start, in session timeouts. A lost controller is replaced
#: within two.
START_SESSIONS = 4

#: Seconds from when this gateway is cut off until it closes the connections with requests that are
#: not answered yet. A request that arrives then is answered at once.
RELEASE_SECONDS = 0.5

#: The share of the drain's time for handing over leadership to other gateways.
LEAVE_SHARE = 0.5

#: Seconds between two attempts to open a store that is not ready. The pause doubles from the first
#: value to the second.
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 8.0

#: Bytes of incomplete frames on all connections before the log-in: 256 of the largest tokens.
MAX_LOGIN_BYTES = 16 << 20

Listeners = list[tuple[Endpoint, Listener, TlsContextFactory | None]]

#: The bound addresses, and the advertised ones by listener.
BoundListeners = tuple[list[Endpoint], dict[str, tuple[str, int]]]


class StartupError(Exception):
    """The server could not start. The message says why and what to do."""


class GatewayServer:
    """A gateway process.

    `lost` is called when the store, or the node id, is taken over by another process. After that
    the server can only be drained.
    """

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
        self._credential_checks = FairWorkers(
            reactor,
            settings.sasl_check_threads,
            "check",
            max_waiting=settings.sasl_max_waiting_checks,
        )
        self._key_download = make_key_download(settings, reactor)
        self._ports: list[Any] = []
        self._connection_sweep = Sweep(self._limits.connections, SWEEP_STEPS, SWEEP_ITEMS_PER_STEP)
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
        """Open the store and the listeners, and return the bound addresses.

        Raises StartupError.
        """
        try:
            listeners = self._make_listeners()
            if self._key_download is not None:
                self._key_download.start()
            broker, bound = await self._open(listeners)
        except (StorageError, TlsError, UsersFileError, ValueError) as failure:
            raise StartupError(str(failure)) from failure
        self._broker = broker
        if broker.membership.node is not None:
            broker.membership.node.when_cut_off(self._release_clients)
        await self._wait_until_serving(broker)
        broker.configs.watch(self._limits.update)
        self._limits.update(broker.settings)
        for _, listener, _ in listeners:
            listener.broker = broker
        for port in self._ports:
            port.startReading()
        self._sweep_loop.start(SWEEP_SECONDS, now=False)
        self._trim_loop.start(memory.TRIM_INTERVAL_SECONDS, now=False)
        self._housekeeping = Housekeeping(broker, self._run_in_background)
        self._housekeeping.start()
        if KERNEL != "cython":
            _log.warning(
                "records are converted in plain Python, about 50 times slower", reason=KERNEL_REASON
            )
        elif compiled.KERNEL != "cython":
            _log.warning(
                "produce and fetch requests are read in plain Python, at 20% more CPU time",
                remedy="install a C compiler and reinstall; in a checkout run make clean first",
            )
        return bound

    async def _wait_until_serving(self, broker: Broker) -> None:
        """Wait until the cluster has this gateway as a node. Its shards open in the background."""
        seconds = START_SESSIONS * self._settings.node_session_timeout_ms / 1000
        try:
            await broker.leadership.wait_until_serving(seconds)
        except TimeoutError:
            _log.warning("no answer of a controller yet, ready without", waited_seconds=seconds)
        if self._is_draining:
            raise StartupError("shut down during the start")

    async def _open(self, listeners: Listeners) -> tuple[Broker, list[Endpoint]]:
        """Open the store, bind the listeners and build the broker.

        Retries until the store is ready or the timeout (`pulsar_start_timeout_ms`) expires.
        """
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
                    "store not ready, retrying",
                    seconds_left=round(left),
                    reason=reason,
                )
            await self._discard_store()
            await sleep(self._reactor, min(pause, left))
            if self._is_draining:
                raise StartupError("shut down during the start")
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
            failed=self._store_lost,
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
        mechanisms = make_mechanisms(
            settings, self._check_credentials, self._scram_credentials, self._key_download
        )
        made = []
        for endpoint in settings.listeners:
            protocol = protocols[endpoint.name]
            listener = Listener(
                endpoint.name,
                self._limits,
                self._budget,
                self._login_budget,
                {
                    name: mechanisms[name]
                    for name in settings.for_listener(endpoint.name).sasl_enabled_mechanisms
                }
                if protocol.has_sasl
                else None,
                make_principal_rules(settings, endpoint.name),
            )
            tls = make_tls(settings, endpoint.name) if protocol.has_tls else None
            made.append((endpoint, listener, tls))
        return made

    def _bind(self, listeners: Listeners) -> BoundListeners:
        bound = []
        for endpoint, listener, tls in listeners:
            factory: Any = listener
            if tls is not None:
                factory = TlsListener(tls, False, listener)
            proxies = self._settings.for_listener(endpoint.name).proxy_protocol_from
            if proxies:
                factory = ProxyListener(
                    endpoint.name, factory, self._limits, proxies, self._reactor
                )
            port = Port(
                endpoint.port, factory, BACKLOG, endpoint.host, self._reactor, self._outgoing
            )
            try:
                port.startListening()
            except CannotListenError as failure:
                in_use = getattr(failure.socketError, "errno", None) == EADDRINUSE
                remedy = ": end the other process, or choose another port" if in_use else ""
                raise StartupError(
                    f"cannot listen on {endpoint}: {failure.socketError}{remedy}"
                ) from failure
            # The kernel queues connections until the broker is ready to serve them.
            port.stopReading()
            self._ports.append(port)
            bound.append(Endpoint(endpoint.name, endpoint.host, port.getHost().port))
        return bound, {endpoint.name: self._advertised(endpoint) for endpoint in bound}

    def _advertised(self, bound: Endpoint) -> tuple[str, int]:
        """The address that clients of this listener receive.

        It is the configured one, with port 0 replaced by the bound port, or else the bound address.
        """
        told = self._settings.advertised_for(bound.name) or bound
        return told.host, told.port or bound.port

    @property
    def node_id(self) -> int | None:
        """The id of this gateway, None before it has started."""
        return None if self._broker is None else self._broker.cluster.node_id

    async def drain(self) -> None:
        """Stop accepting, answer the requests in flight and store what is queued.

        Everything that takes longer than `shutdown_timeout_ms` is aborted.
        """
        self._is_draining = True
        deadline = self._reactor.seconds() + self._settings.shutdown_timeout_ms / 1000
        if self._key_download is not None:
            self._key_download.stop()
        has_left = False
        if self._broker is not None and not self._is_store_lost:
            # Clients find the new leaders while this gateway still answers.
            seconds = self._settings.shutdown_timeout_ms / 1000 * LEAVE_SHARE
            until = self._reactor.seconds() + seconds
            await self._broker.membership.leave(seconds)
            has_left = self._broker.cluster.has_others
            if has_left:
                await wait_until_quiet(self._limits.connections, self._reactor, until)
        for port in self._ports:
            await port.stopListening()
        self._limits.abort_without_header()
        if has_left:
            await close_between_requests(self._limits.connections, self._reactor, deadline)
        for loop in (self._sweep_loop, self._trim_loop):
            if loop.running:
                loop.stop()
        if self._housekeeping is not None:
            self._housekeeping.stop()
        if self._broker is not None:
            self._broker.interruptible_waits.end()
            self._broker.groups.close()
            await self._drain_connections(deadline)
            await self._finish_remote_appends(deadline)
            await self._broker.traffic.close(CLOSE_SECONDS)
            await self._broker.audit.close(CLOSE_SECONDS)
            if not self._is_store_lost:
                await self._resign_within(deadline)
            self._broker.membership.close()
        if self._is_store_open:
            await self._close_store(deadline)
        await self._close_workers(deadline)

    async def _close_workers(self, deadline: float) -> None:
        """Wait for running calls. A call that takes longer than the drain ends with the process."""
        for workers in (self._conversions, self._credential_checks):
            with suppress(TimeoutError):
                await shield_with_timeout(
                    self._reactor, max(deadline - self._reactor.seconds(), 0), workers.close()
                )

    async def _resign_within(self, deadline: float) -> None:
        """Close all shards, which saves the producer snapshots."""
        assert self._broker
        left = max(deadline - self._reactor.seconds(), CLOSE_SECONDS)
        try:
            await shield_with_timeout(self._reactor, left, self._broker.leadership.close())
        except TimeoutError:
            _log.warning(
                "shards not closed before the drain timeout, the next start reads more of the logs"
            )

    async def _close_store(self, deadline: float) -> None:
        try:
            await shield_with_timeout(
                self._reactor,
                max(deadline - self._reactor.seconds(), CLOSE_SECONDS),
                self._store.close(),
            )
        except TimeoutError:
            _log.warning("store not closed before the drain timeout, exiting without")

    async def _drain_connections(self, deadline: float) -> None:
        while self._limits.connections:
            for connection in list(self._limits.connections):
                connection.drain()
            if not self._limits.connections:
                return
            left = deadline - self._reactor.seconds()
            if left <= 0:
                _log.warning(
                    "connections aborted at the drain timeout",
                    connections=len(self._limits.connections),
                )
                for connection in list(self._limits.connections):
                    connection.abort()
                return
            await sleep(self._reactor, min(left, 0.02))

    async def _finish_remote_appends(self, deadline: float) -> None:
        """Pass on what clients have sent with acks=0."""
        assert self._broker
        appends = self._broker.remote_appends
        if appends is not None:
            left = max(deadline - self._reactor.seconds(), 0)
            with suppress(TimeoutError):
                await shield_with_timeout(self._reactor, left, appends.finish())

    def _release_clients(self) -> None:
        """End what keeps clients at this gateway, which is cut off from the cluster.

        Without its session, a consumer asks for all partitions and receives their errors, also of
        those without new records. Requests for partitions that are being opened are refused. Reads
        may wait for Pulsar for half a minute: their connections are closed.

        Appends that Pulsar was given keep waiting, up to their timeout: Pulsar may store them, and
        a producer that is not idempotent would write them twice.
        """
        if self._broker is not None:
            self._broker.fetch_sessions.clear()
            self._broker.topics.refuse_openings()
        self._reactor.callLater(RELEASE_SECONDS, self._abort_waiting)

    def _abort_waiting(self) -> None:
        if self._broker is None or self._broker.leadership.may_serve():
            return
        waiting = [one for one in self._limits.connections if one.waits_for_reads]
        for connection in waiting:
            connection.abort()
        if waiting:
            _log.info("connections closed whose requests wait for Pulsar", count=len(waiting))

    def _close_overdue(self) -> None:
        for connection, reason in overdue_connections(
            self._connection_sweep.step(), self._reactor.seconds()
        ):
            connection.close_overdue(reason)
        self._sweep_loop.interval = SWEEP_SECONDS / self._connection_sweep.steps

    def _check_credentials(self, host: str, check: Callable[[], T]) -> Deferred[T]:
        return self._credential_checks.run_for(host, check).addErrback(_to_authentication_busy)

    def _scram_credentials(self) -> ScramCredentialSource:
        if self._broker is None:
            raise AuthenticationBusy("the gateway is starting")
        return self._broker.scram_credentials

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        start(work, lambda _: None, lambda failure: _log.bug("background task failed", failure))


def _to_authentication_busy(failure: Failure) -> NoReturn:
    failure.trap(TooManyWaiting)
    raise AuthenticationBusy("too many password checks are waiting")


def run(settings: Settings, reactor: Any, on_ready: Callable[[], None] = lambda: None) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    `on_ready` is called when connections are accepted. The code is 0 after a drain, and 1 if the
    server could not start or lost its store.
    """
    memory.configure_allocator()
    process = _ServerProcess(settings, reactor, on_ready)
    reactor.addSystemEventTrigger("before", "shutdown", process.drain)
    reactor.callWhenRunning(process.start_server)
    reactor.run()
    return process.exit_code


class _ServerProcess:
    """The server as a process: its log, its signals and its exit code."""

    def __init__(self, settings: Settings, reactor: Any, on_ready: Callable[[], None]) -> None:
        self.exit_code = 0
        self._on_ready = on_ready
        self._settings = settings
        self._reactor = reactor
        self._server = GatewayServer(settings, reactor, self._lost)
        self._is_ending = False

    def start_server(self) -> None:
        start(self._server.start(), self._started, self._failed)

    def _started(self, bound: list[Endpoint]) -> None:
        memory.freeze_startup_objects()
        addresses, store = ",".join(map(str, bound)), self._settings.store
        sys.stdout.write(f"ready listeners={addresses} store={store} node={self._server.node_id}\n")
        sys.stdout.flush()
        self._on_ready()

    def _failed(self, failure: BaseException) -> None:
        if self._is_ending:
            # Shutting down has interrupted the start: nothing to report.
            return
        if isinstance(failure, StartupError):
            # A Pulsar cluster may have several problems: one line each, with its remedy.
            for reason in str(failure).splitlines() or [""]:
                _log.error("cannot start", reason=reason)
        else:
            _log.bug("cannot start", failure)
        self._end_in_failure()

    def _lost(self, reason: str) -> None:
        _log.error("store lost, shutting down", reason=reason)
        self._end_in_failure()

    def _end_in_failure(self) -> None:
        self.exit_code = 1
        # Later, because a signal may already have requested a stop, which the reactor runs first:
        # a second one is an error.
        self._reactor.callLater(0, self._stop_reactor)

    def _stop_reactor(self) -> None:
        if not self._is_ending:
            with suppress(ReactorNotRunning):
                self._reactor.stop()

    def drain(self) -> Deferred[None]:
        """Stop the server; the reactor ends when the result is there."""
        self._is_ending = True
        began = self._reactor.seconds()
        # A second signal would stop the reactor twice, which it logs as an error.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        done: Deferred[None] = Deferred()

        def broken(failure: BaseException) -> None:
            self.exit_code = 1
            _log.bug("drain failed", failure)
            done.callback(None)

        def drained(_: None) -> None:
            if self.exit_code == 0:
                # After a failure, the error stays the last line of the log.
                _log.info("stopped", seconds=round(self._reactor.seconds() - began, 3))
            done.callback(None)

        start(self._server.drain(), drained, broken)
        return done
