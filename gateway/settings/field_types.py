"""Types of settings, units, and how values are read from text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode

from gateway.settings.addresses import (
    Endpoint,
    KeyLocation,
    SecurityProtocol,
    parse_endpoint,
    parse_key_location,
    parse_key_set_url,
    parse_name,
    parse_namespace,
    parse_network,
)

#: Of every section: no unknown names, no conversion of types, defaults are checked as well.
SECTION_CONFIG = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
INT16_MAX, INT32_MAX, INT64_MAX = (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1

#: Keys of the store have at most 480 bytes; 20 of them identify the partition.
MAX_GROUP_ID_BYTES = 460

Level = Literal["debug", "info", "warning", "error"]
TlsVersion = Literal["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"]


def _read_list(value: Any) -> Any:
    """Read a TOML list, or `a,b` from the environment or a flag."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return tuple(value) if isinstance(value, list) else value


def _read_principals(value: Any) -> Any:
    """Read a list as `_read_list`, or `User:a;User:b`, Kafka's format of super.users."""
    return _read_list(value.replace(";", ",") if isinstance(value, str) else value)


def _read_principal(text: str) -> str:
    kind, _, name = text.partition(":")
    if not kind or not name:
        raise ValueError(f"{text!r} is not TYPE:NAME, for example User:admin")
    return text


def read_table(value: Any) -> Any:
    """Read a TOML table, or `NAME:VALUE,NAME:VALUE` from the environment or a flag."""
    if not isinstance(value, str):
        return value
    pairs = [item.partition(":") for item in value.split(",") if item.strip()]
    table = {name.strip(): rest.strip() for name, _, rest in pairs}
    if len(table) != len(pairs) or not all(colon for _, colon, _ in pairs):
        raise ValueError(f"{value!r} is not NAME:VALUE,NAME:VALUE with unique names")
    return table


def from_text(parse: Callable[[str], Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _read_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("expected a file name")
    return Path(text)


Endpoints = Annotated[
    tuple[Annotated[Endpoint, from_text(parse_endpoint)], ...],
    BeforeValidator(_read_list),
    NoDecode,
]
File = Annotated[Path, from_text(_read_path)]
Files = Annotated[tuple[File, ...], BeforeValidator(_read_list), NoDecode]
Networks = Annotated[
    tuple[Annotated[IPv4Network | IPv6Network, from_text(parse_network)], ...],
    BeforeValidator(_read_list),
    NoDecode,
]
Protocols = Annotated[
    Mapping[str, Annotated[SecurityProtocol, Field(strict=False)]],
    BeforeValidator(read_table),
    NoDecode,
]
Levels = Annotated[Mapping[str, Level], BeforeValidator(read_table), NoDecode]
Mechanisms = Annotated[
    tuple[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"], ...],
    BeforeValidator(_read_list),
    NoDecode,
]
Principals = Annotated[
    tuple[Annotated[str, from_text(_read_principal)], ...],
    BeforeValidator(_read_principals),
    NoDecode,
]
Name = Annotated[str, from_text(parse_name)]
Key = Annotated[KeyLocation, from_text(parse_key_location)]
KeySetUrl = Annotated[str, from_text(parse_key_set_url)]
Words = Annotated[tuple[str, ...], BeforeValidator(_read_list), NoDecode]
Namespaces = Annotated[
    tuple[Annotated[str, from_text(parse_namespace)], ...], BeforeValidator(_read_list), NoDecode
]
CleanupPolicy = Annotated[
    tuple[Literal["delete", "compact"], ...], BeforeValidator(_read_list), NoDecode
]
