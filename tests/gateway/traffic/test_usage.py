from __future__ import annotations

import pytest

from gateway.traffic.traffic_rows import UsageRow
from gateway.traffic.usage import BUCKETS, UsageCounters


def row(usage, *, is_incoming=True):
    filled = UsageRow(
        v=1,
        at=2,
        node=0,
        cluster="c",
        connection="0-1-0",
        sequence=0,
        began=1,
        listener="PLAINTEXT",
        peer="192.0.2.1",
        api_key=0,
        api_version=3,
    )
    usage.fill(filled, is_incoming=is_incoming)
    return filled


BOUNDS = [250 * 4**power for power in range(BUCKETS - 1)]


@pytest.mark.parametrize(
    ("microseconds", "bucket"),
    [
        (0, 0),
        *((bound - 1, index) for index, bound in enumerate(BOUNDS)),
        *((bound, index + 1) for index, bound in enumerate(BOUNDS)),
        (10**12, BUCKETS - 1),
    ],
)
def test_latency_is_in_first_bucket_above_it(microseconds, bucket):
    usage = UsageCounters()
    usage.add_request(0, 0, microseconds)
    assert row(usage).latency_us_buckets == [int(index == bucket) for index in range(BUCKETS)]
    assert row(usage).latency_us_sum == microseconds


def test_batches_are_counted_by_format_and_codec():
    usage = UsageCounters()
    for magic, codec in [(0, 0), (1, 2), (2, 2), (2, 4), (2, 4)]:
        usage.batches[magic << 3 | codec] += 1
    came, went = row(usage), row(usage, is_incoming=False)
    assert came.magic_in == went.magic_out == {"0": 1, "1": 1, "2": 3}
    assert came.codec_in == went.codec_out == {"none": 1, "snappy": 2, "zstd": 2}
    assert came.magic_out is went.codec_in is None


def test_errors_are_counted_by_code_without_success():
    usage = UsageCounters()
    for code in [0, 3, 6, 3, 0]:
        usage.add_error(code)
    assert row(usage).errors == {"3": 2, "6": 1}
    assert row(UsageCounters()).errors is None


def test_request_bytes_include_length_field():
    usage = UsageCounters()
    for _ in range(3):
        usage.add_request(100, 50, 10)
    filled = row(usage)
    assert (filled.requests, filled.bytes_in, filled.bytes_out) == (3, 312, 150)


def test_throttle_time_is_in_the_row():
    usage = UsageCounters()
    usage.throttle_ms += 250
    assert row(usage).throttle_ms == 250
