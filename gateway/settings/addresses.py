"""What a setting calls an address: a listener's endpoint, the security that its name stands for, a store, its admin API. Text in, values out."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import Enum

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
_NAMED_ENTITY = re.compile(r"[-=:.\w]+\Z", re.ASCII)
_ENDPOINT = re.compile(
    r"(?P<name>[^:/]*)://(?P<host>\[[^\[\]]*\]|[^:\[\]/]*):(?P<port>[0-9]{1,5})\Z", re.ASCII
)


class SecurityProtocol(Enum):
    """What a listener asks of a connection; the names and their meaning are Kafka's."""

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
    """`NAME://HOST:PORT`. `host` bears no brackets; port 0 is "any free one" for a listener and "the bound one" for an advertised address."""

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
    """`SCHEME:LOCATION`; for `lmdb` the location is a directory, relative to the working directory, for Pulsar `//HOST:PORT,...`."""

    scheme: str
    location: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.location}"

    @property
    def is_pulsar(self) -> bool:
        return self.scheme in PULSAR_SCHEMES


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint that `text` names. Raises ValueError with what is wrong, in words for the one who wrote it."""
    match = _ENDPOINT.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not NAME://HOST:PORT (an IPv6 address stands in brackets)")
    name, host, port = match["name"], match["host"], int(match["port"])
    if not _NAME.match(name):
        raise ValueError(
            f"{text!r}: a listener's name is in capitals, digits and underscores, not {name!r}"
        )
    if port > 65535:
        raise ValueError(f"{text!r}: port {port} is beyond 65535")
    return Endpoint(name, _parse_host(text, host), port)


def parse_store(text: str) -> StoreAddress:
    """The store that `text` names. Raises ValueError with what is wrong."""
    scheme, colon, location = text.partition(":")
    if not colon:
        raise ValueError(
            f"{text!r} is not SCHEME:LOCATION, for example lmdb:./data or pulsar://HOST:6650"
        )
    if scheme not in STORE_SCHEMES:
        raise ValueError(
            f"{text!r}: unknown scheme {scheme!r}; there is {', '.join(STORE_SCHEMES)}"
        )
    if scheme in PULSAR_SCHEMES:
        return StoreAddress(scheme, _parse_brokers(text, location))
    if not location or "\0" in location:
        raise ValueError(f"{text!r} names no directory; write for example lmdb:./data")
    return StoreAddress(scheme, location)


def parse_admin(text: str) -> str:
    """The URL of Pulsar's admin API that `text` is, without a slash at its end. Raises ValueError with what is wrong."""
    match = _ADMIN.match(text)
    if match is None or not match["host"] or int(match["port"] or 0) > 65535:
        raise ValueError(
            "the admin API of Pulsar has an address like http://HOST:8080 or https://HOST:8443 (a token belongs into a file)"
        )
    _parse_host(text, match["host"])
    return text.rstrip("/")


def parse_name(text: str) -> str:
    """The name of a tenant or of a namespace without its tenant. Raises ValueError for what Pulsar takes as neither."""
    if not _NAMED_ENTITY.match(text):
        raise ValueError(f"{text!r} is no name in Pulsar: letters, digits and -=:._ are")
    return text


def parse_namespace(text: str) -> str:
    """`TENANT/NAMESPACE`. Raises ValueError with what is wrong."""
    tenant, slash, namespace = text.partition("/")
    if not slash or not _NAMED_ENTITY.match(tenant) or not _NAMED_ENTITY.match(namespace):
        raise ValueError(f"{text!r} is not TENANT/NAMESPACE, one by one: there are no wildcards")
    return text


def _parse_brokers(text: str, location: str) -> str:
    """`//HOST:PORT,HOST:PORT` as it is written down."""
    written = []
    for broker in location.removeprefix("//").split(","):
        end = _ENDPOINT.match(f"PULSAR://{broker}")
        if end is None or not end["host"] or "@" in broker or not location.startswith("//"):
            raise ValueError(
                "a store in Pulsar is pulsar://HOST:6650 or pulsar+ssl://HOST:6651, several brokers with commas between (a token belongs into a file)"
            )
        if int(end["port"]) > 65535:
            raise ValueError(f"{text!r}: port {end['port']} is beyond 65535")
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
            f"{text!r} has no host; write 0.0.0.0 for every interface (and say what to advertise)"
        )
    if not _HOST.match(host):
        raise ValueError(f"{text!r}: {host!r} is neither a host name nor an address")
    if re.fullmatch(r"[0-9.]+", host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError(f"{text!r}: {host} is not an IPv4 address") from None
    return host
