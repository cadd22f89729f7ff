"""What is known about the client of a connection: its address, credentials, software and habits."""

from __future__ import annotations

import re
from sys import intern
from typing import TypedDict

import msgspec

from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import FetchRequest
from gateway.protocol.wire.header import RequestHeader
from gateway.protocol.wire.produce_codec import ProduceRequest
from gateway.traffic.traffic_rows import Habit, HabitName, bounded_text

MAX_CLIENT_IDS = 8
MAX_FIRST_REQUESTS = 16
MAX_PROTOCOLS = 8

_FIRST_FETCH_WITH_MAX_BYTES = 3
_FIRST_FETCH_WITH_ISOLATION = 4
_FIRST_FETCH_WITH_SESSION = 7

_SASL_PATHS = {0: "handshake-v0-bare", 1: "handshake-v1"}

#: A mechanism name (RFC 4422). Anything else is not logged: it may be a misplaced secret.
_MECHANISM_NAME = re.compile(r"[A-Z0-9_-]{1,20}\Z")


class PeerAddress(msgspec.Struct, frozen=True):
    """Where a connection comes from. `address` is hashed if a salt is configured."""

    address: str
    port: int
    listener: str
    protocol: str


class IdentityFields(TypedDict):
    """Fields of a connection's rows."""

    tls: str | None
    mechanism: str | None
    principal: str | None
    software: str | None
    software_version: str | None
    api_versions: int | None
    api_versions_refused: bool
    client_ids: list[str] | None


class ClientIdentity:
    """What is known about one client.

    `highest` is the highest version seen by API key, `client_id` the last client id, as written to
    rows. `is_incomplete` is true while request headers can still add information. Connections share
    the names of their first requests (`intern`).
    """

    __slots__ = (
        "_api_versions_refused",
        "_client_ids",
        "_has_greeted",
        "_mechanism",
        "_tls",
        "client_id",
        "first_requests",
        "habits",
        "highest",
        "is_incomplete",
        "principal",
        "sasl_path",
        "software",
        "software_version",
    )

    def __init__(self, principal: str | None) -> None:
        self.principal = principal
        self.client_id: str | None = None
        self.software: str | None = None
        self.software_version: str | None = None
        self.sasl_path = "none"
        self.highest: dict[int, int] = {}
        self.first_requests: list[str] = []
        self.habits: dict[HabitName, Habit] = {}
        self.is_incomplete = True
        self._tls: str | None = None
        self._mechanism: str | None = None
        self._client_ids: list[str] = []
        self._api_versions_refused: bool | None = None
        self._has_greeted = False

    def tls_established(self, version: str) -> None:
        self._tls = version

    def handshake_received(self, mechanism: str, version: int) -> None:
        self.sasl_path = _SASL_PATHS.get(version, "none")
        self._mechanism = mechanism if _MECHANISM_NAME.match(mechanism) else None

    def bare_gssapi_received(self) -> None:
        self._mechanism = "GSSAPI"

    def software_announced(self, software: str | None, version: str | None) -> None:
        if self.software is None and software:
            self.software = bounded_text(software)
            self.software_version = bounded_text(version) if version else None

    def habit_seen(self, name: HabitName, value: Habit) -> None:
        if name not in self.habits:
            self.habits[name] = (
                [bounded_text(one) for one in value[:MAX_PROTOCOLS]]
                if isinstance(value, list)
                else value
            )

    def record_request(self, header: RequestHeader, *, is_served: bool) -> bool:
        """Record the header of one of the first requests, or of one with another client id.

        Returns True once: for the first request after ApiVersions.
        """
        client_id, api_key, version = header.client_id, header.api_key, header.api_version
        if client_id != self.client_id:
            # Shortened, because 10,000 connections could keep 32 KiB each. A longer client id never
            # equals its shortened form, so its headers are recorded with every request.
            name = self.client_id = None if client_id is None else bounded_text(client_id)
            if (
                name is not None
                and len(self._client_ids) < MAX_CLIENT_IDS
                and name not in self._client_ids
            ):
                self._client_ids.append(name)
        if len(self.first_requests) < MAX_FIRST_REQUESTS:
            name = f"{api_key}:{version}"
            # Not what a client invents: Python 3.12 never frees such strings.
            self.first_requests.append(intern(name) if is_served else name)
        is_first_request = False
        if api_key == ApiKey.API_VERSIONS:
            if self._api_versions_refused is None:
                self._api_versions_refused = not is_served
        elif not self._has_greeted:
            self._has_greeted = is_first_request = True
        self.is_incomplete = not self._has_greeted or len(self.first_requests) < MAX_FIRST_REQUESTS
        return is_first_request

    def record_produce(self, request: ProduceRequest) -> None:
        self.habits["acks"] = request.acks
        self.habits["produce_timeout_ms"] = request.timeout_ms

    def record_fetch(self, request: FetchRequest) -> None:
        habits = self.habits
        habits["fetch_max_wait_ms"] = request.max_wait_ms
        habits["fetch_min_bytes"] = request.min_bytes
        if request.version >= _FIRST_FETCH_WITH_MAX_BYTES:
            habits["fetch_max_bytes"] = request.max_bytes
        if request.version >= _FIRST_FETCH_WITH_ISOLATION:
            habits["isolation_level"] = request.isolation_level
        if request.version >= _FIRST_FETCH_WITH_SESSION:
            habits["fetch_session"] = request.session_epoch >= 0
        first = next(
            (partition for topic in request.topics for partition in topic.partitions), None
        )
        if first is not None:
            habits["partition_max_bytes"] = first.max_bytes

    def row_fields(self) -> IdentityFields:
        """Return the fields of all rows of the connection."""
        return {
            "tls": self._tls,
            "mechanism": self._mechanism,
            "principal": self.principal,
            "software": self.software,
            "software_version": self.software_version,
            "api_versions": self.highest.get(ApiKey.API_VERSIONS),
            "api_versions_refused": bool(self._api_versions_refused),
            "client_ids": self._client_ids or None,
        }
