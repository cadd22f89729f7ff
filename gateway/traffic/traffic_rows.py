"""The rows of the traffic log: schema version 1, documented in docs/traffic-log.md.

Fields that do not apply are omitted. Readers ignore unknown fields; a change of a field's meaning
needs a new version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

VERSION = 1

#: Maximum length of strings; a client id can have 32 KiB. The longest names of topics (249) and
#: groups (460) fit.
MAX_TEXT = 512


#: Why a connection was closed.
Reason = Literal[
    "client",
    "idle",
    "drain",
    "error:refused",
    "error:frame",
    "error:login",
    "error:login-timeout",
    "error:mechanism",
    "error:busy",
    "error:tls",
    "error:request-timeout",
    "error:stalled",
    "error:lost",
    "error:bug",
]

#: Client settings that are visible in requests.
HabitName = Literal[
    "fetch_max_wait_ms",
    "fetch_min_bytes",
    "fetch_max_bytes",
    "partition_max_bytes",
    "acks",
    "produce_timeout_ms",
    "isolation_level",
    "fetch_session",
    "metadata_all",
    "auto_create",
    "session_timeout_ms",
    "rebalance_timeout_ms",
    "protocols",
]
Habit = int | bool | list[str]


class ConnectionRow(msgspec.Struct, tag="connection", tag_field="kind", omit_defaults=True):
    """An event of a connection, with what is known about it so far.

    Times are in ms since 1970, durations in ms.
    """

    v: int
    at: int
    node: int
    cluster: str
    connection: str
    sequence: int
    event: str
    listener: str
    peer: str
    peer_port: int
    protocol: str
    road: str
    opened_at: int
    tls: str | None = None
    mechanism: str | None = None
    principal: str | None = None
    software: str | None = None
    software_version: str | None = None
    api_versions: int | None = None
    api_versions_refused: bool = False
    client_ids: list[str] | None = None
    reason: Reason | None = None
    duration_ms: int | None = None
    requests: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    highest: dict[str, int] | None = None
    first_requests: list[str] | None = None
    habits: dict[HabitName, Habit] | None = None


class UsageRow(msgspec.Struct, tag="usage", tag_field="kind", omit_defaults=True):
    """Use of one API version by a connection from `began` to `at`.

    The row is about one topic if `topic` is set, otherwise about all.
    """

    v: int
    at: int
    node: int
    cluster: str
    connection: str
    sequence: int
    began: int
    listener: str
    peer: str
    api_key: int
    api_version: int
    topic: str | None = None
    group: str | None = None
    merged: bool = False
    client_id: str | None = None
    principal: str | None = None
    software: str | None = None
    software_version: str | None = None
    requests: int = 0
    errors: dict[str, int] | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    records: int = 0
    magic_in: dict[str, int] | None = None
    magic_out: dict[str, int] | None = None
    codec_in: dict[str, int] | None = None
    codec_out: dict[str, int] | None = None
    conversions: int = 0
    converted_records: int = 0
    converted_bytes: int = 0
    conversion_cpu_us: int = 0
    throttle_ms: int = 0
    latency_us_sum: int = 0
    latency_us_buckets: list[int] | None = None


Row = ConnectionRow | UsageRow


def bounded_text(value: str) -> str:
    """Return a string of limited length that can be encoded as UTF-8."""
    if len(value) <= MAX_TEXT and value.isascii():
        return value
    return value[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8")


_ENCODER = msgspec.json.Encoder()

#: A character from U+0080 to U+009F in UTF-8.
_C1 = re.compile(rb"\xc2([\x80-\x9f])")


def encode_lines(rows: Sequence[msgspec.Struct]) -> bytes:
    """Encode rows as JSON lines without control characters.

    JSON escapes those below U+0020. Terminals may also act on those from U+0080 to U+009F.
    """
    lines = _ENCODER.encode_lines(rows)
    return _C1.sub(_as_escape, lines) if b"\xc2" in lines else lines


def _as_escape(match: re.Match[bytes]) -> bytes:
    return b"\\u00%02x" % match[1][0]
