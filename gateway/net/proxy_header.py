"""The PROXY protocol: the header in which a proxy states the address of its client.

Versions 1 (text) and 2 (binary), as in HAProxy's specification (doc/proxy-protocol.txt). Additional
fields of version 2 (TLVs) are skipped, their checksum as well.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

#: Largest header of version 2. Addresses take at most 216 bytes; the specification allows 64 KiB of
#: additional fields, proxies send a few hundred bytes of them.
MAX_HEADER_BYTES = 4096

#: Largest header of version 1 with its CRLF (section 2.1).
MAX_LINE_BYTES = 107

_TEXT_PREFIX = b"PROXY "
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED_BYTES = 16
_VERSION_2 = 2
_LOCAL, _PROXY = 0, 1
_MAX_FAMILY, _MAX_TRANSPORT = 3, 2

#: Address family and bytes of an address, by the text of version 1 and by the byte of version 2.
#: The other values stand for connections without an IP address, or not over TCP.
_TEXT_FAMILIES = {b"TCP4": socket.AF_INET, b"TCP6": socket.AF_INET6}
_BINARY_FAMILIES = {0x11: (socket.AF_INET, 4), 0x21: (socket.AF_INET6, 16)}

_PORT = re.compile(rb"0|[1-9][0-9]{0,4}")
_MAX_PORT = 65535

#: First bytes of an IPv6 address that stands for an IPv4 address.
_MAPPED = bytes(10) + b"\xff\xff"


class InvalidProxyHeader(Exception):
    """The bytes are not a PROXY header. The message says why, without quoting them."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A header of `size` bytes.

    `source` is the client's address and port. None means that the proxy does not state it, or
    connected on its own account: the address of the socket is the client's.
    """

    size: int
    source: tuple[str, int] | None


def parse_proxy_header(received: bytes | bytearray) -> ProxyHeader | None:
    """Return the header at the start of `received`, None if more bytes are needed.

    After MAX_HEADER_BYTES the answer is never None. Raises InvalidProxyHeader as soon as the bytes
    cannot become a header.
    """
    if received.startswith(_SIGNATURE[: len(received)]):
        return _parse_binary(received) if len(received) >= _FIXED_BYTES else None
    if not received.startswith(_TEXT_PREFIX[: len(received)]):
        raise InvalidProxyHeader("no PROXY protocol header")
    end = received.find(b"\r\n", 0, MAX_LINE_BYTES)
    if end >= 0:
        return ProxyHeader(end + 2, _parse_line(bytes(received[:end])))
    if len(received) >= MAX_LINE_BYTES:
        raise InvalidProxyHeader(f"PROXY header is longer than {MAX_LINE_BYTES} bytes")
    return None


def _parse_line(line: bytes) -> tuple[str, int] | None:
    """Return the source address of a header of version 1, without its CRLF."""
    _, protocol, *fields = line.split(b" ")
    if protocol == b"UNKNOWN":
        return None
    if protocol not in _TEXT_FAMILIES:
        raise InvalidProxyHeader("PROXY header has an unknown protocol")
    if len(fields) != 4:
        raise InvalidProxyHeader("PROXY header does not have two addresses and two ports")
    family = _TEXT_FAMILIES[protocol]
    source, _ = (_read_address(family, text) for text in fields[:2])
    port, _ = (_read_port(text) for text in fields[2:])
    return source, port


def _read_address(family: int, text: bytes) -> str:
    try:
        return _address(family, socket.inet_pton(family, text.decode("ascii")))
    except (OSError, ValueError):
        raise InvalidProxyHeader("PROXY header has an invalid address") from None


def _read_port(text: bytes) -> int:
    if not _PORT.fullmatch(text) or int(text) > _MAX_PORT:
        raise InvalidProxyHeader("PROXY header has an invalid port")
    return int(text)


def _parse_binary(received: bytes | bytearray) -> ProxyHeader | None:
    version, command = divmod(received[12], 16)
    if version != _VERSION_2 or command not in (_LOCAL, _PROXY):
        raise InvalidProxyHeader("PROXY header has an unknown version or command")
    size = _FIXED_BYTES + int.from_bytes(received[14:16], "big")
    if size > MAX_HEADER_BYTES:
        raise InvalidProxyHeader(
            f"PROXY header has {size} bytes, more than the limit of {MAX_HEADER_BYTES}"
        )
    if len(received) < size:
        return None
    if command == _LOCAL:
        return ProxyHeader(size, None)
    kind = received[13]
    family, transport = divmod(kind, 16)
    if family > _MAX_FAMILY or transport > _MAX_TRANSPORT:
        raise InvalidProxyHeader("PROXY header has an unknown address family or transport")
    if kind not in _BINARY_FAMILIES:
        return ProxyHeader(size, None)
    number, width = _BINARY_FAMILIES[kind]
    fields = bytes(received[_FIXED_BYTES:size])
    if len(fields) < 2 * width + 4:
        raise InvalidProxyHeader("PROXY header is too short for its addresses")
    port = int.from_bytes(fields[2 * width : 2 * width + 2], "big")
    return ProxyHeader(size, (_address(number, fields[:width]), port))


def _address(family: int, packed: bytes) -> str:
    """Return the text of an address.

    IPv6 addresses that stand for IPv4 addresses become these, as in Java's InetAddress: ACLs name
    the host in one form only.
    """
    if packed.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[len(_MAPPED) :])
    return socket.inet_ntop(family, packed)


__all__ = [
    "MAX_HEADER_BYTES",
    "MAX_LINE_BYTES",
    "InvalidProxyHeader",
    "ProxyHeader",
    "parse_proxy_header",
]
