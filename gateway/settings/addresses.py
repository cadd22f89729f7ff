"""Parses addresses in settings: listeners, stores, Pulsar's admin API, and where keys are."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import unquote, urlsplit

WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})
PULSAR_SCHEMES = ("pulsar", "pulsar+ssl")
STORE_SCHEMES = ("lmdb", *PULSAR_SCHEMES)

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")
_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?\Z"
)
_ADMIN = re.compile(
    r"https?://(?P<host>\[[^\[\]]*\]|[^:\[\]/@?#]*)(:(?P<port>[0-9]{1,5}))?(/[A-Za-z0-9._~/-]*)?\Z",
    re.ASCII,
)
_KEY_SET = re.compile(
    r"https?://(?P<host>\[[^\[\]]*\]|[^:\[\]/@?#]*)(:(?P<port>[0-9]{1,5}))?(/[!-\"$-~]*)?\Z",
    re.ASCII,
)
_NAMED_ENTITY = re.compile(r"[-=:.\w]+\Z", re.ASCII)
_ENDPOINT = re.compile(
    r"(?P<name>[^:/]*)://(?P<host>\[[^\[\]]*\]|[^:\[\]/]*):(?P<port>[0-9]{1,5})\Z", re.ASCII
)


class SecurityProtocol(Enum):
    """Security protocol of a listener, as in Kafka."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`NAME://HOST:PORT`; `host` has no brackets.

    Port 0 means any free port for a listener and the bound port for an advertised address.
    """

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        return self.host in WILDCARD_HOSTS


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """`SCHEME:LOCATION`.

    The location is a directory for `lmdb`, relative to the working directory, and `//HOST:PORT,...`
    for Pulsar.
    """

    scheme: str
    location: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.location}"

    @property
    def is_pulsar(self) -> bool:
        return self.scheme in PULSAR_SCHEMES


@dataclass(frozen=True, slots=True)
class KeyLocation:
    """Where a key is: in the file `path`, or in the setting itself as `content`."""

    path: Path | None
    content: bytes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"file://{self.path}" if self.path else "data:(hidden)"


def parse_endpoint(text: str) -> Endpoint:
    """Parse a listener's address. Raises ValueError with a message for the user."""
    match = _ENDPOINT.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not NAME://HOST:PORT (write IPv6 addresses in brackets)")
    name, host, port = match["name"], match["host"], int(match["port"])
    if not _NAME.match(name):
        raise ValueError(
            f"{text!r}: a listener's name consists of capitals, digits and underscores, not "
            f"{name!r}"
        )
    if port > 65535:
        raise ValueError(f"{text!r}: port {port} is greater than 65535")
    return Endpoint(name, _parse_host(text, host), port)


def parse_store(text: str) -> StoreAddress:
    """Parse the address of a store. Raises ValueError with a message for the user."""
    scheme, colon, location = text.partition(":")
    if not colon:
        raise ValueError(
            f"{text!r} is not SCHEME:LOCATION, for example lmdb:./data or pulsar://HOST:6650"
        )
    if scheme not in STORE_SCHEMES:
        raise ValueError(
            f"{text!r}: unknown scheme {scheme!r}; supported are {', '.join(STORE_SCHEMES)}"
        )
    if scheme in PULSAR_SCHEMES:
        return StoreAddress(scheme, _parse_brokers(text, location))
    if not location or "\0" in location:
        raise ValueError(f"{text!r} has no directory; use for example lmdb:./data")
    return StoreAddress(scheme, location)


def parse_admin(text: str) -> str:
    """Parse the URL of Pulsar's admin API; a trailing slash is removed.

    Raises ValueError with a message for the user.
    """
    match = _ADMIN.match(text)
    if match is None or not match["host"] or int(match["port"] or 0) > 65535:
        raise ValueError(
            "the admin API of Pulsar has an address like http://HOST:8080 or https://HOST:8443 "
            "(put a token into a file)"
        )
    _parse_host(text, match["host"])
    return text.rstrip("/")


def parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Parse an IP address or a network, such as 10.0.0.0/8. Raises ValueError."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not an IP address or network such as 192.0.2.1 or 10.0.0.0/8: {error}"
        ) from None


def canonical_host(text: str) -> str:
    """Return an IP address in the form by which clients are compared; other text unchanged.

    An IPv6 address that stands for an IPv4 address becomes that, as in Java's InetAddress: a
    listener on `[::]` accepts IPv4 as well.
    """
    if ":" not in text:
        return text
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return text
    return str(address.ipv4_mapped or address)


def parse_name(text: str) -> str:
    """Check the name of a tenant or of a namespace without its tenant, by Pulsar's rules.

    Raises ValueError.
    """
    if not _NAMED_ENTITY.match(text):
        raise ValueError(f"{text!r} is not a valid name in Pulsar: use letters, digits and -=:._")
    return text


def parse_namespace(text: str) -> str:
    """Check `TENANT/NAMESPACE`. Raises ValueError with a message for the user."""
    tenant, slash, namespace = text.partition("/")
    if not slash or not _NAMED_ENTITY.match(tenant) or not _NAMED_ENTITY.match(namespace):
        raise ValueError(f"{text!r} is not TENANT/NAMESPACE; wildcards are not supported")
    return text


def parse_key_location(text: str) -> KeyLocation:
    """Parse the place of a key as Pulsar does (AuthTokenUtils.readKeyFromUrl).

    It is `file:///PATH`, `data:;base64,KEY`, the path of an existing file, or the key in base64.
    Raises ValueError, whose message does not contain the text, since that may be the key.
    """
    if text.startswith("file:"):
        return KeyLocation(_parse_file_url(text))
    if text.startswith("data:"):
        kind, comma, content = text.partition(",")
        if not comma or not kind.endswith(";base64"):
            raise ValueError("a key in the setting itself is data:;base64,KEY")
        return KeyLocation(None, _parse_base64(content))
    if text and "\0" not in text and Path(text).exists():
        return KeyLocation(Path(text))
    return KeyLocation(None, _parse_base64(text))


def _parse_base64(text: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content:
        raise ValueError("expected file:///PATH, data:;base64,KEY, or the path of an existing file")
    return content


def parse_key_set_url(text: str) -> str:
    """Check the URL of a key set. Raises ValueError with a message for the user."""
    if text.startswith("file:"):
        _parse_file_url(text)
        return text
    match = _KEY_SET.match(text)
    if match is None or not match["host"] or int(match["port"] or 0) > 65535:
        raise ValueError("expected https://HOST/PATH or file:///PATH")
    _parse_host(text, match["host"])
    return text


def path_of_file_url(url: str) -> Path | None:
    """Return the path of a `file:` URL, or None for another URL."""
    return _parse_file_url(url) if url.startswith("file:") else None


def _parse_file_url(text: str) -> Path:
    parts = urlsplit(text)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ValueError("the URL of a file is file:///PATH")
    return Path(path)


def _parse_brokers(text: str, location: str) -> str:
    """Return `//HOST:PORT,HOST:PORT` in normal form."""
    written = []
    for broker in location.removeprefix("//").split(","):
        end = _ENDPOINT.match(f"PULSAR://{broker}")
        if end is None or not end["host"] or "@" in broker or not location.startswith("//"):
            raise ValueError(
                "a store in Pulsar is pulsar://HOST:6650 or pulsar+ssl://HOST:6651, several "
                "brokers separated by commas (put a token into a file)"
            )
        if int(end["port"]) > 65535:
            raise ValueError(f"{text!r}: port {end['port']} is greater than 65535")
        written.append(
            str(Endpoint("", _parse_host(text, end["host"]), int(end["port"]))).removeprefix("://")
        )
    return "//" + ",".join(written)


def _parse_host(text: str, host: str) -> str:
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(f"{text!r}: {host} is not an IPv6 address") from None
    if not host:
        raise ValueError(
            f"{text!r} has no host; use 0.0.0.0 for all interfaces, and set `advertised`"
        )
    if not _HOST.match(host):
        raise ValueError(f"{text!r}: {host!r} is neither a host name nor an address")
    if re.fullmatch(r"[0-9.]+", host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError(f"{text!r}: {host} is not an IPv4 address") from None
    return host
