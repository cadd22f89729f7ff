"""Fuzz target: bytes that arrive on a connection behind a Produce or a Fetch.

Compiled code serves requests like the last one from the bytes of the socket. Everything else that
it does must be what the Python implementation does: replies, logs, producers and traffic rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import count
from struct import pack
from typing import Any

import pytest

from gateway import app
from gateway.net.framing import FrameSplitter
from gateway.protocol.wire import compiled
from gateway.protocol.wire.header import read_header
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION
from gateway.settings.model import Settings
from tests.fakes import broker as fake_broker
from tests.fakes import connection as fake_connection
from tests.fakes.connection import produce_request, request
from tests.fakes.traffic import TrafficScenario
from tests.fuzz.buffers import exact
from tests.fuzz.wire_targets import (
    FETCH_VERSIONS,
    PRODUCE_VERSIONS,
    fetch_body,
    produce_body,
    repair_records,
)
from tests.gateway.protocol.wire.implementations import use
from tests.records.record_sets import batch, pairs

_PRODUCE, _FETCH = 0, 1
_LIMIT = 1 << 20
_SETTINGS = Settings()
_RECORDS = bytes(batch(pairs(2)))

# Bits of the first byte.
_IS_DAMAGED, _IS_HELD, _IS_DOUBLED = 1, 2, 4
# Bits of the second byte; the others are the version.
_IS_FETCH, _IS_CHUNK = 0x80, 0x40


def chunks(payload: bytes) -> None:
    """The first byte selects whether checksums of records stay as they are, whether the store
    completes appends late, and whether a request is sent twice. The second selects API and version
    of the request before, and whether the other bytes are a chunk or the body of a request with the
    same header.
    """
    if len(payload) < 2 or compiled.KERNEL != "cython":
        return
    choice, kind, content = payload[0], payload[1], payload[2:]
    warm = _warm(kind)
    if kind & _IS_CHUNK:
        chunk = content
    else:
        position = read_header(bytearray(warm), FIRST_FLEXIBLE_VERSION).body
        frame = bytearray(warm[:position] + content)
        if not choice & _IS_DAMAGED and not kind & _IS_FETCH:
            repair_records(frame, position, _version(kind))
        chunk = (pack(">i", len(frame)) + frame) * (2 if choice & _IS_DOUBLED else 1)
    is_held = bool(choice & _IS_HELD)
    expected = _effects("python", warm, chunk, is_held=is_held)
    found = _effects("cython", warm, chunk, is_held=is_held)
    for name, effect in expected.items():
        assert found[name] == effect, (name, found[name], effect)


def _version(kind: int) -> int:
    return (kind & 0x3F) % (FETCH_VERSIONS if kind & _IS_FETCH else PRODUCE_VERSIONS)


def _warm(kind: int) -> bytes:
    """A request after which those with the same header are served by compiled code."""
    version = _version(kind)
    if kind & _IS_FETCH:
        key, body = _FETCH, _fetch(version)
    else:
        key, body = _PRODUCE, produce_body(version, _RECORDS)
    tags = b"\0" if version >= FIRST_FLEXIBLE_VERSION[key] else b""
    return pack(">hhih", key, version, 7, 2) + b"me" + tags + body


def _fetch(version: int) -> bytes:
    """The body of a request without a session, answered with records."""
    return fetch_body(version, index=0, leader_epoch=-1, offset=0, session=(0, -1))


def _effects(implementation: str, warm: bytes, chunk: bytes, *, is_held: bool) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        use(implementation, patch)
        # Most of the time would be spent on settings and the version of the package.
        for module in (fake_broker, fake_connection):
            patch.setattr(module, "Settings", lambda **_: _SETTINGS)
        patch.setattr(app, "version", lambda: "1")
        ids = count(1)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(ids)))
        scenario = TrafficScenario()
        env = scenario.env
        env.topic("orders", partitions=2)
        partitions = [env.partition("orders", index) for index in range(2)]
        producer, client = scenario.connect(), scenario.connect()
        producer.send(request(produce_request()))
        client.send(warm)
        replies = [producer.receive(), client.receive()]
        if is_held:
            env.store.hold()
        served = client.dispatch.serve_chunk(exact(chunk))
        frames = FrameSplitter(_LIMIT).feed(chunk[served:])
        if frames:
            client.dispatch.frames_received(frames)
        client.flow.pause_if_over_limit()
        replies.append(client.receive())
        env.store.release()
        for _ in range(2):
            env.clock.advance(100.0)
            replies.append(client.receive())
        scenario.disconnect(client)
        return {
            "replies": replies,
            "entries": [
                [(e.base_offset, e.last_offset, e.max_timestamp, bytes(e.payload)) for e in entries]
                for entries in (one.log.read_resident(0, 1 << 30) for one in partitions)
            ],
            "producers": [one.snapshot() for one in partitions],
            "rows": sorted(
                str({**row, "conversion_cpu_us": 0, "sequence": 0}) for row in scenario.kept.rows
            ),
            "is aborted": client.is_aborted,
            "in flight": (client.budget.used, [one.in_flight for one in partitions]),
            "bugs": [repr(bug) for bug in env.bugs],
        }


TARGETS: dict[str, Callable[[bytes], None]] = {"chunks": chunks}


def seeds() -> list[bytes]:
    """The bodies of requests of each version, and chunks of two and a half requests."""
    idempotent = bytes(batch(pairs(1), producer=(7, 0, 0)))
    bodies = [
        (version, produce_body(version, records))
        for records in (idempotent, _RECORDS)
        for version in range(PRODUCE_VERSIONS)
    ]
    bodies += [(version | _IS_FETCH, _fetch(version)) for version in range(FETCH_VERSIONS)]
    found = [bytes((0, kind)) + body for kind, body in bodies]
    for kind in (3, 7, 9, 13, _IS_FETCH | 4, _IS_FETCH | 16):
        frame = _warm(kind)
        chunk = (pack(">i", len(frame)) + frame) * 3
        found.append(bytes((0, kind | _IS_CHUNK)) + chunk[: -len(frame) // 2])
        found.append(bytes((0, kind | _IS_CHUNK)) + chunk[: len(frame) + 4])
    return found
