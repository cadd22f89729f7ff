"""A traffic log in memory, and clients with real dispatch, handlers and recorders."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from auth.mechanism import Principal
from gateway.app import traffic_topic_name
from gateway.traffic.client_identity import PeerAddress
from gateway.traffic.recorder import Recorder
from gateway.traffic.traffic_log import TrafficLog
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.fakes.connection import MemoryClient

START = 36**3
"""`1000` in base 36."""

INTERVAL = 60


NINE_OCLOCK_MS = int(datetime(2026, 11, 22, 9, 0, 0, tzinfo=UTC).timestamp() * 1000)


class ManualClock:
    """A manual clock: seconds for intervals, and ms since 1970."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.jump_ms = 0

    def ticks(self) -> float:
        return self.seconds

    def now(self) -> int:
        return NINE_OCLOCK_MS + int((self.seconds - 100) * 1000) + self.jump_ms


class RecordedRows:
    """The destination of lines.

    `rows` are the decoded lines, `blocks` the number of lines in each write.
    """

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.text = b""
        self.is_stopped = False

    def put(self, block: bytes, lines: int) -> None:
        assert block.count(b"\n") == lines
        self.blocks.append(lines)
        self.text += block
        self.rows += [msgspec.json.decode(line) for line in block.splitlines()]

    async def stop(self, seconds: float) -> None:
        self.is_stopped = True


class TrafficScenario:
    """The traffic log of a gateway. `ticks` is its clock for latencies, in ns."""

    def __init__(
        self,
        *,
        max_keys: int = 100,
        max_rows: int = 1000,
        salt: bytes | None = None,
        **settings: Any,
    ) -> None:
        self.env: BrokerEnvironment = open_environment(**settings)
        self.kept = RecordedRows()
        self.ticks = 0
        self.log = TrafficLog(
            [self.kept],
            7,
            "cluster",
            start=START,
            now=self.env.now,
            clock=self.env.clock,
            interval=INTERVAL,
            max_keys=max_keys,
            max_rows=max_rows,
            salt=salt,
            topic_name=lambda topic: traffic_topic_name(self.env.broker.topics, topic),
            ticks=lambda: self.ticks,
        )
        self.recorder: Recorder | None = None

    def connect(self, mechanisms: list[Any] | None = None, **peer: Any) -> MemoryClient:
        """Connect a client. `recorder` is then its recorder."""
        seen = PeerAddress(
            **{
                "address": "192.0.2.1",
                "port": 5000,
                "listener": "PLAINTEXT",
                "protocol": "PLAINTEXT",
                **peer,
            }
        )

        def record(principal: Principal | None) -> Recorder:
            self.recorder = self.log.connection(seen, principal)
            return self.recorder

        return MemoryClient(mechanisms, broker=self.env.broker, listener="PLAINTEXT", record=record)

    def disconnect(self, client: MemoryClient, reason: str = "client") -> None:
        """Close the socket."""
        assert self.recorder is not None
        client.disconnect()
        self.recorder.closed(reason)

    def rows(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """The rows of this kind with these fields. None matches a missing field."""
        return [
            row
            for row in self.kept.rows
            if row["kind"] == kind and all(row.get(name) == value for name, value in fields.items())
        ]

    def event(self, name: str) -> dict[str, Any]:
        """The only row of that event."""
        (row,) = self.rows("connection", event=name)
        return row

    def usage(self, **fields: Any) -> dict[str, Any]:
        """The only usage row with these fields."""
        (row,) = self.rows("usage", **fields)
        return row
