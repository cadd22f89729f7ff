"""Writes traffic logs as a gateway does."""

from __future__ import annotations

import gzip
import itertools
import json
from datetime import UTC, datetime
from pathlib import Path

CLUSTER = "c-1"


def ms(day, hour=12, minute=0, second=0):
    """A day is text: 2026-11-20."""
    return int(
        datetime.fromisoformat(f"{day}T{hour:02}:{minute:02}:{second:02}")
        .replace(tzinfo=UTC)
        .timestamp()
        * 1000
    )


class Process:
    """A gateway process: its rows are numbered without gaps, and its files are in the folder of the
    hour in which they were started.
    """

    def __init__(self, logs, node=1, start="mh8z3k00"):
        self.logs, self.node, self.start = Path(logs), node, start
        self._sequence = itertools.count()
        self._connections = itertools.count(1)
        self._files = itertools.count()

    def row(self, kind, at, connection, **fields):
        row = {
            "v": 1,
            "kind": kind,
            "at": at,
            "node": self.node,
            "cluster": CLUSTER,
            "connection": connection,
            "sequence": next(self._sequence),
        }
        return {**row, **fields}

    def connection(self, at, until, client_ids=(), requests=(), topics=(), group=None, **said):
        """All rows of one connection: opened, usage (api key, version, requests, bytes in, bytes
        out), topics with their fields, closed.
        """
        name = f"{self.node}-{self.start}-{next(self._connections)}"
        said = {
            "listener": "PLAINTEXT",
            "protocol": "PLAINTEXT",
            "principal": "User:ANONYMOUS",
            "peer": "10.0.0.1",
            **said,
        }
        rows = [
            self.row(
                "connection",
                at,
                name,
                event="opened",
                **{key: said[key] for key in ("listener", "protocol", "peer")},
            )
        ]
        repeated = {
            key: said[key]
            for key in ("principal", "listener", "software", "software_version")
            if said.get(key) is not None
        }
        whole = {**repeated, "client_id": client_ids[-1]} if client_ids else repeated
        for key, version, count, bytes_in, bytes_out in requests:
            of_group = {"group": group} if group and 8 <= key <= 14 else {}
            counts = {
                "api_key": key,
                "api_version": version,
                "requests": count,
                "bytes_in": bytes_in,
                "bytes_out": bytes_out,
            }
            rows.append(
                self.row(
                    "usage",
                    until,
                    name,
                    began=at,
                    **whole,
                    **counts,
                    **of_group,
                    latency_us_sum=100 * count,
                )
            )
        for topic, key, version, of_it in topics:
            rows.append(
                self.row(
                    "usage",
                    until,
                    name,
                    began=at,
                    **whole,
                    api_key=key,
                    api_version=version,
                    topic=topic,
                    **of_it,
                )
            )
        highest = {
            str(key): max(row[1] for row in requests if row[0] == key) for key, *_ in requests
        }
        known = {key: value for key, value in said.items() if value is not None}
        closing = {
            "client_ids": list(client_ids),
            "opened_at": at,
            "reason": "client",
            "duration_ms": until - at,
            "highest": highest,
        }
        return [*rows, self.row("connection", until, name, event="closed", **known, **closing)]

    def file(self, day, hour, rows, packed=True):
        """Write rows (or lines) to the next file and return its path."""
        folder = self.logs / f"date={day}" / f"hour={hour:02}"
        folder.mkdir(parents=True, exist_ok=True)
        path = (
            folder / f"{self.node}-{self.start}-{next(self._files)}.jsonl{'.gz' if packed else ''}"
        )
        content = lines(rows)
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
        return path


def lines(rows):
    texts = [
        row
        if isinstance(row, bytes)
        else (row if isinstance(row, str) else json.dumps(row)).encode()
        for row in rows
    ]
    return b"".join(text + b"\n" for text in texts)
