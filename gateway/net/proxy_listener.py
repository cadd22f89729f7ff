"""Listeners behind a proxy that states the address of its clients with the PROXY protocol.

The header precedes everything else, also TLS. The protocol of a connection is created only after
it, with the client's address, and replaces the reader of the header. So a listener without a proxy
does not pass through this module, and nothing remains of it once the header is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from twisted.internet.address import IPv4Address as Ipv4Peer
from twisted.internet.address import IPv6Address as Ipv6Peer
from twisted.internet.protocol import Factory, Protocol

from gateway.coroutines import Cancel, call_later
from gateway.net.listeners import ConnectionLimits, log_refused_connection
from gateway.net.proxy_header import InvalidProxyHeader, parse_proxy_header

#: Seconds for the header to arrive: a proxy sends it at once, and the specification asks for more
#: than one retransmission of TCP (3 seconds).
HEADER_SECONDS = 5.0


class ProxyListener(Factory):
    """Reads the PROXY header of each connection, which is then one of `listener`.

    Connections that do not come from `proxies` are refused: they could state any address.
    """

    noisy = False

    def __init__(
        self,
        name: str,
        listener: Any,
        limits: ConnectionLimits,
        proxies: Sequence[IPv4Network | IPv6Network],
        clock: Any,
    ) -> None:
        self.name = name
        self.listener = listener
        self.limits = limits
        self.clock = clock
        self._proxies = proxies

    def buildProtocol(self, addr: Any) -> ProxyHeaderReader | None:
        reason = (
            self.limits.refusal_reason(None)
            if self._is_proxy(addr.host)
            else "its address is not in proxy_protocol_from"
        )
        if reason is not None:
            log_refused_connection(addr, self.name, reason)
            return None
        return ProxyHeaderReader(self, addr)

    def _is_proxy(self, host: str) -> bool:
        address = ip_address(host)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            # A listener on [::] accepts IPv4 as well.
            address = address.ipv4_mapped
        return any(address in network for network in self._proxies)


class ProxyHeaderReader(Protocol):
    """A connection until its PROXY header is complete."""

    transport: Any

    def __init__(self, factory: ProxyListener, addr: Any) -> None:
        self._factory = factory
        self._addr = addr
        # Less than MAX_HEADER_BYTES between two reads.
        self._received = bytearray()
        self._deadline: Cancel | None = None

    def connectionMade(self) -> None:
        self._factory.limits.without_header.add(self)
        self._deadline = call_later(
            self._factory.clock, HEADER_SECONDS, lambda: self._refuse("PROXY header timed out")
        )

    def received(self, chunk: memoryview) -> None:
        self._received += chunk
        try:
            header = parse_proxy_header(self._received)
        except InvalidProxyHeader as invalid:
            self._refuse(str(invalid))
            return
        if header is None:
            return
        self._end()
        client = self._addr if header.source is None else _peer(*header.source)
        protocol = self._factory.listener.buildProtocol(client)
        if protocol is None:
            self.transport.abortConnection()
        else:
            self.transport.switch_protocol(protocol, memoryview(self._received)[header.size :])

    def connectionLost(self, reason: Any = None) -> None:
        self._end()

    def abort(self) -> None:
        self.transport.abortConnection()

    def _refuse(self, reason: str) -> None:
        self._end()
        log_refused_connection(self._addr, self._factory.name, reason)
        self.abort()

    def _end(self) -> None:
        self._factory.limits.without_header.discard(self)
        if self._deadline is not None:
            self._deadline()
            self._deadline = None


def _peer(host: str, port: int) -> Ipv4Peer | Ipv6Peer:
    return (Ipv6Peer if ":" in host else Ipv4Peer)("TCP", host, port)
