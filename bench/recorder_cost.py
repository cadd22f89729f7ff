"""CPU cost of the traffic log's recorder, measured alone in this process.

It is too small to be measured by comparing two gateways on a shared machine. Here it is the minimum
of many rounds of a few milliseconds, in CPU seconds per GiB of such requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from timeit import repeat
from types import SimpleNamespace

from twisted.internet.task import Clock

from auth.mechanism import ANONYMOUS
from bench.clients import BATCH_BYTES, RECORD_BYTES
from gateway.partitions.record_batch import check_batch
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import FetchRequest, FetchResponse, PartitionFetched
from gateway.protocol.wire.header import RequestHeader
from gateway.protocol.wire.produce_codec import PartitionRecords, ProduceRequest, TopicRecords
from gateway.traffic.client_identity import PeerAddress
from gateway.traffic.recorder import Recorder
from gateway.traffic.traffic_log import TrafficLog
from tests.records.sample_records import Sample, batch

GIB = 1 << 30
FETCH_BYTES = 1 << 20
PRODUCE_VERSION, FETCH_VERSION = 11, 11
ROUNDS = 40
REQUESTS = 500


class DiscardingSink:
    """A sink that discards rows."""

    def put(self, block: bytes, lines: int) -> None: ...
    async def stop(self, seconds: float) -> None: ...


def produce_cost(partitions: int) -> float:
    """CPU seconds per GiB of Produce requests with one full batch for each of `partitions`
    partitions.
    """
    records = full_batch()
    request = ProduceRequest(
        PRODUCE_VERSION,
        None,
        -1,
        30_000,
        [TopicRecords("orders", [PartitionRecords(index, records) for index in range(partitions)])],
    )
    prepared = [(None, records, check_batch(records, PRODUCE_VERSION), "orders")] * partitions
    recorder = _recorder()
    return (
        _seconds(recorder, ApiKey.PRODUCE, lambda: recorder.produced(request, prepared))
        * GIB
        / (partitions * BATCH_BYTES)
    )


def fetch_cost() -> float:
    """CPU seconds per GiB of Fetch replies with FETCH_BYTES of full batches."""
    request = FetchRequest(FETCH_VERSION, -1, 500, 1, FETCH_BYTES, 0, 0, -1, (), ())
    reply = FetchResponse(
        [
            (
                "orders",
                [PartitionFetched(0, 0, records=[full_batch()] * (FETCH_BYTES // BATCH_BYTES))],
            )
        ]
    )
    recorder = _recorder()
    return (
        _seconds(recorder, ApiKey.FETCH, lambda: recorder.fetched(request, reply))
        * GIB
        / FETCH_BYTES
    )


def full_batch() -> memoryview:
    """A batch of BATCH_BYTES as Kafka's producer fills it, with incompressible values."""
    # Current timestamps: retention would delete older records.
    samples = [
        Sample(index, int(time.time() * 1000), None, os.urandom(RECORD_BYTES))
        for index in range(BATCH_BYTES // RECORD_BYTES - 1)
    ]
    return memoryview(bytearray(batch(samples)))


def _recorder() -> Recorder:
    limits = {"interval": 60.0, "max_keys": 1000, "max_rows": 100_000}
    log = TrafficLog(
        [DiscardingSink()],
        0,
        "bench",
        start=0,
        now=lambda: 0,
        clock=Clock(),
        salt=None,
        topic_name=str,
        **limits,
    )
    return log.connection(PeerAddress("192.0.2.1", 5000, "PLAINTEXT", "PLAINTEXT"), ANONYMOUS)


def _seconds(recorder: Recorder, api_key: int, told: Callable[[], object]) -> float:
    """CPU seconds of the recorder for one request: begin, the handler's report, reply."""
    version = PRODUCE_VERSION if api_key == ApiKey.PRODUCE else FETCH_VERSION
    owed = SimpleNamespace(
        api_key=api_key, version=version, size=BATCH_BYTES, began=0, throttle_ms=0, route=True
    )
    header = RequestHeader(api_key, version, 1, "producer-1", 20)
    reply = object()

    def request() -> None:
        owed.began = time.monotonic_ns()
        recorder.request_started(owed, header)
        told()
        recorder.request_answered(owed, reply, 100)

    return min(repeat(request, number=REQUESTS, repeat=ROUNDS, timer=time.thread_time)) / REQUESTS
