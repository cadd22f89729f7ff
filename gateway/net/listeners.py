"""Listeners: connection limits, and the protocols of accepted sockets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol, cast

from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface.declarations import directlyProvides

from auth.certificate_principals import PrincipalRules
from auth.mechanism import Mechanism
from auth.tls import TlsContextFactory
from gateway import logs
from gateway.broker import Broker
from gateway.net.connection import KafkaConnection
from gateway.net.flow_control import LoginBudget, MemoryBudget
from gateway.settings.addresses import canonical_host
from gateway.settings.model import Settings

_log = logs.get_logger(__name__)


class Abortable(Protocol):
    """A connection that can be aborted."""

    def abort(self) -> None: ...


class ConnectionLimits:
    """The open connections of all listeners, and the limits on their number."""

    def __init__(self, settings: Settings) -> None:
        self.update(settings)
        self._by_ip: Counter[str] = Counter()
        self.connections: set[KafkaConnection] = set()
        #: Connections whose PROXY header is incomplete, so that their client is unknown.
        self.without_header: set[Abortable] = set()

    def update(self, settings: Settings) -> None:
        """Apply new limits. Connections beyond them stay open."""
        self._max = settings.max_connections
        self._max_per_ip = settings.max_connections_per_ip

    def refusal_reason(self, host: str | None) -> str | None:
        """Return why a connection from `host` is refused, None if it is accepted.

        `host` is None before the PROXY header.
        """
        if len(self.connections) + len(self.without_header) >= self._max:
            return f"max_connections={self._max} reached"
        if host is not None and self._by_ip[host] >= self._max_per_ip:
            return f"max_connections_per_ip={self._max_per_ip} reached"
        return None

    def abort_without_header(self) -> None:
        """Abort the connections whose PROXY header is incomplete."""
        for connection in list(self.without_header):
            connection.abort()

    def add(self, connection: KafkaConnection, host: str) -> None:
        self.connections.add(connection)
        self._by_ip[host] += 1

    def remove(self, connection: KafkaConnection, host: str) -> None:
        self.connections.discard(connection)
        self._by_ip[host] -= 1
        if not self._by_ip[host]:
            del self._by_ip[host]


class Listener(Factory):
    """Creates the connections of one listener.

    `mechanisms` is None for a listener without SASL, `principal_rules` for one on which client
    certificates are not the log-in.
    """

    noisy = False

    def __init__(
        self,
        name: str,
        limits: ConnectionLimits,
        budget: MemoryBudget,
        login_budget: LoginBudget,
        mechanisms: Mapping[str, Mechanism] | None,
        principal_rules: PrincipalRules | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.budget = budget
        self.login_budget = login_budget
        self.mechanisms = mechanisms
        self.principal_rules = principal_rules
        # Set before the first connection is accepted.
        self.broker: Broker

    def buildProtocol(self, addr: Any) -> KafkaConnection | None:
        host = canonical_host(addr.host)
        reason = self.limits.refusal_reason(host)
        if reason is not None:
            log_refused_connection(addr, self.name, reason)
            return None
        return KafkaConnection(self, host, addr.port)

    def opened(self, connection: KafkaConnection) -> None:
        self.limits.add(connection, connection.host)

    def closed(self, connection: KafkaConnection) -> None:
        self.limits.remove(connection, connection.host)


class TlsListener(TLSMemoryBIOFactory):
    """A listener with TLS.

    Twisted's factory does not support `buildProtocol` returning None, which refuses a connection.
    """

    def __init__(self, tls: TlsContextFactory, *rest: Any) -> None:
        # `auth` does not import Twisted, so the interface is declared here.
        directlyProvides(tls, IOpenSSLServerConnectionCreator)
        super().__init__(cast(Any, tls), *rest)

    def buildProtocol(self, addr: Any) -> Any:
        connection = self.wrappedFactory.buildProtocol(addr)
        return None if connection is None else self.protocol(self, connection)


def log_refused_connection(addr: Any, listener: str, reason: str) -> None:
    """Log that a connection from `addr`, an address of Twisted, was refused."""
    _log.warning(
        "connection refused", peer=f"{addr.host}:{addr.port}", listener=listener, reason=reason
    )
