"""Counters for one API version over an interval. Counting is a few additions per request."""

from __future__ import annotations

from gateway.traffic.traffic_rows import UsageRow

#: Latency buckets: up to 250 us, 1 ms, 4 ms and so on, the last for all longer ones.
BUCKETS = 12
_FIRST_BUCKET_US = 250

CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7")
_MAGIC_COUNT = 3

#: Bytes of a frame's length field, which is not part of the frame.
_LENGTH_BYTES = 4


class UsageCounters:
    """The counters of one row. `is_merged` marks the row of all topics and groups beyond the limit.

    `batches` counts batches and message sets by `magic << 3 | codec`.
    """

    __slots__ = (
        "batches",
        "bytes_in",
        "bytes_out",
        "conversion_cpu_us",
        "conversions",
        "converted_bytes",
        "converted_records",
        "errors",
        "is_merged",
        "latencies",
        "latency_us",
        "records",
        "requests",
        "throttle_ms",
    )

    def __init__(self, *, is_merged: bool = False) -> None:
        self.is_merged = is_merged
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.records = 0
        self.latency_us = 0
        self.latencies = [0] * BUCKETS
        self.errors: dict[int, int] | None = None
        self.conversions = 0
        self.converted_records = 0
        self.converted_bytes = 0
        self.conversion_cpu_us = 0
        self.throttle_ms = 0
        self.batches = [0] * (_MAGIC_COUNT * len(CODECS))

    def add_request(self, bytes_in: int, bytes_out: int, microseconds: int) -> None:
        """Count an answered request and its latency."""
        self.requests += 1
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        self.latency_us += microseconds
        # Each bucket is two bits wider than the one before.
        bucket = ((microseconds // _FIRST_BUCKET_US).bit_length() + 1) >> 1
        self.latencies[bucket if bucket < BUCKETS else -1] += 1

    def add_error(self, code: int, count: int = 1) -> None:
        if code:
            errors = self.errors
            if errors is None:
                errors = self.errors = {}
            errors[code] = errors.get(code, 0) + count

    def fill(self, row: UsageRow, *, is_incoming: bool) -> None:
        """Copy the counters to `row`. `is_incoming` tells produced batches from fetched ones."""
        row.merged = self.is_merged
        row.requests = self.requests
        row.bytes_in = self.bytes_in + _LENGTH_BYTES * self.requests
        row.bytes_out = self.bytes_out
        row.records = self.records
        row.conversions = self.conversions
        row.converted_records = self.converted_records
        row.converted_bytes = self.converted_bytes
        row.conversion_cpu_us = self.conversion_cpu_us
        row.throttle_ms = self.throttle_ms
        row.latency_us_sum = self.latency_us
        if any(self.latencies):
            row.latency_us_buckets = self.latencies
        if self.errors is not None:
            row.errors = {str(int(code)): count for code, count in self.errors.items()}
        if any(self.batches):
            magics: dict[str, int] = {}
            codecs: dict[str, int] = {}
            for index, count in enumerate(self.batches):
                if count:
                    magic, codec = str(index >> 3), CODECS[index & 7]
                    magics[magic] = magics.get(magic, 0) + count
                    codecs[codec] = codecs.get(codec, 0) + count
            if is_incoming:
                row.magic_in, row.codec_in = magics, codecs
            else:
                row.magic_out, row.codec_out = magics, codecs
