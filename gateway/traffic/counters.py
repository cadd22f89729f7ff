"""Counters of one connection and interval, one for each API key, version, topic and group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.fetch_codec import FetchRequest, FetchResponse
from gateway.protocol.wire.produce_codec import ProduceRequest
from gateway.traffic.traffic_rows import bounded_text
from gateway.traffic.usage import UsageCounters
from records import kernel
from records.layout import ATTRIBUTES_AT, CODEC_MASK, MAGIC_AT
from storage.log import Buffer

#: First Produce version with record batches; earlier ones have message sets of format 0 or 1.
_FIRST_WITH_BATCHES = 3

#: API keys and versions of a connection that do not count towards the limits: clients use about 30.
#: ApiVersions alone can be sent in 32,768 versions.
UNCOUNTED_VERSIONS = 64

#: Response fields that are lists with error codes. Handlers report the errors of partitions.
_ERROR_LISTS = ("topics", "responses", "results", "groups", "coordinators", "members")

#: API key, version, topic as the client named it (name or 16-byte id), group. An empty topic or
#: group stands for all beyond the limit.
CounterKey = tuple[int, int, str | bytes | None, str | None]


class RowLimits:
    """Limits on topic and group counters in an interval, per connection and in total."""

    __slots__ = ("in_total", "per_connection", "used")

    def __init__(self, per_connection: int, in_total: int) -> None:
        self.per_connection = per_connection
        self.in_total = in_total
        self.used = 0


class Counters(dict[CounterKey, UsageCounters]):
    """Counters by key; missing ones are created.

    Beyond the limits one counter is shared by all further topics or groups of an API key and
    version. Call `release` before dropping the object. The versions of new counters update
    `highest`, by API key.
    """

    __slots__ = ("_highest", "_limits", "_used", "_version_count")

    def __init__(self, limits: RowLimits, highest: dict[int, int]) -> None:
        self._limits = limits
        self._highest = highest
        self._used = 0
        self._version_count = 0

    def __missing__(self, key: CounterKey) -> UsageCounters:
        api_key, version, topic, group = key
        if version > self._highest.get(api_key, -1):
            self._highest[api_key] = version
        is_merged = False
        if topic is not None or group is not None:
            # Requested names can be longer than any valid name; only a prefix is kept.
            key = (
                api_key,
                version,
                bounded_text(topic) if isinstance(topic, str) else topic,
                None if group is None else bounded_text(group),
            )
            is_merged = key not in self and not self._reserve()
            if is_merged:
                key = (
                    (api_key, version, None, "") if topic is None else (api_key, version, "", None)
                )
        else:
            is_merged = not self._reserve_version()
            if is_merged:
                # Merged into a version that the client did use, so that the row reports nothing
                # false.
                key = (
                    api_key,
                    min((known for one, known, *_ in self if one == api_key), default=version),
                    None,
                    "",
                )
        usage = self.get(key)
        if usage is None:
            usage = self[key] = UsageCounters(is_merged=is_merged)
        return usage

    def _reserve_version(self) -> bool:
        if self._version_count < UNCOUNTED_VERSIONS:
            self._version_count += 1
            return True
        return self._reserve()

    def release(self) -> None:
        """Return this connection's counters to the total limit."""
        self._limits.used -= self._used
        self._used = 0

    def _reserve(self) -> bool:
        limits = self._limits
        if self._used >= limits.per_connection or limits.used >= limits.in_total:
            return False
        self._used += 1
        limits.used += 1
        return True

    def count_produced(self, request: ProduceRequest, prepared: Sequence[Any]) -> None:
        """Count the records of a Produce request; see `Recorder.produced`."""
        version = request.version
        at = 0
        for topic in request.topics:
            usage = self[0, version, topic.topic, None]
            batches = usage.batches
            count = size = 0
            for sent in topic.partitions:
                ready = prepared[at]
                at += 1
                records = sent.records
                if ready.__class__ is not tuple or not records:
                    # Rejected, or an empty message set.
                    continue
                batch = ready[2]
                count += batch.count
                size += len(records)
                if version >= _FIRST_WITH_BATCHES:
                    batches[16 | batch.attributes & CODEC_MASK] += 1
                else:
                    batches[records[MAGIC_AT] << 3 | records[ATTRIBUTES_AT] & CODEC_MASK] += 1
            usage.records += count
            usage.bytes_in += size

    def count_produced_at_once(self, request: Any) -> None:
        """As `count_produced`; see `Recorder.produced_at_once`."""
        for number, topic in enumerate(request.topics):
            usage = self[0, request.version, topic, None]
            records, size = request.count(number, usage.batches)
            usage.records += records
            usage.bytes_in += size

    def count_fetched(self, request: FetchRequest, response: FetchResponse) -> None:
        """Count the records of a Fetch response."""
        version = request.version
        if response.error_code:
            self[1, version, None, None].add_error(response.error_code)
        for topic, rows in response.topics:
            usage = self[1, version, topic, None]
            for row in rows:
                if row.error_code:
                    usage.add_error(row.error_code)
                if row.records:
                    _count_batches(usage, row.records)


def _count_batches(usage: UsageCounters, batches: Sequence[Buffer]) -> None:
    """Count batches and their records. A response can have thousands."""
    counts, records, size = kernel.tally(batches)
    for kind, count in enumerate(counts):
        if count:
            usage.batches[kind] += count
    usage.bytes_out += size
    usage.records += records


def count_errors(usage: UsageCounters, reply: Any) -> None:
    """Count the top-level error of a response and those of its parts."""
    if isinstance(reply, list):
        # An encoded v0 response: ApiVersions was requested in an unsupported version.
        usage.add_error(ErrorCode.UNSUPPORTED_VERSION)
        return
    usage.add_error(getattr(reply, "error_code", 0) or 0)
    # Those of an encoded reply.
    for code, count in (getattr(reply, "errors", None) or {}).items():
        usage.add_error(code, count)
    for name in _ERROR_LISTS:
        parts = getattr(reply, name, None)
        if isinstance(parts, list):
            for part in parts:
                usage.add_error(getattr(part, "error_code", 0) or 0)
