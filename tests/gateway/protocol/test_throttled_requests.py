"""Quotas of real handlers on one connection: throttle times, muting, and what counts.

With 11 samples of 1 s a quota allows ten times its value at once. The times follow from the sizes
of requests and replies.
"""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer.fetch import FetchResponse
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer.produce import ProduceResponse

from gateway.net.flow_control import MAX_BYTES_BEHIND_WAITING_REQUEST
from gateway.protocol import request_time
from gateway.traffic.recorder import Recorder
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.fakes.connection import MemoryClient, ScriptedMechanism, request
from tests.testkit.gateway import fetch_request, one_record, produce_request

RECORDS = one_record(b"v" * 1000)


@pytest.fixture
def env() -> BrokerEnvironment:
    made = open_environment()
    made.topic()
    return made


@pytest.fixture
def client(env: BrokerEnvironment) -> MemoryClient:
    return MemoryClient(broker=env.broker, listener="PLAINTEXT")


def frame(message: Any, version: int, client_id: str | None = "app") -> bytes:
    message.API_VERSION = version
    return request(message, client_id=client_id)


def produce(version: int = 7, acks: int = -1, client_id: str | None = "app") -> bytes:
    return frame(produce_request("orders", RECORDS, version, acks), version, client_id)


def fetch(offset: int = 0, version: int = 4, **more: Any) -> bytes:
    return frame(fetch_request("orders", offset, version, **more), version)


def metadata(version: int = 4) -> bytes:
    return frame(MetadataRequest(version=version, topics=None), version)


def receive(client: MemoryClient, kind: Any, version: int) -> Any:
    (reply,) = client.receive()
    return kind.decode(reply[4:], version=version)


def produced(client: MemoryClient, version: int = 7) -> int:
    reply = receive(client, ProduceResponse, version)
    assert reply.responses[0].partition_responses[0].error_code == 0
    return reply.throttle_time_ms


def limit(env: BrokerEnvironment, seconds: float, version: int = 7) -> int:
    """Set a quota that throttles one request for this time after the 10 s that it may take.

    Returns the throttle time in ms.
    """
    size = len(produce(version))
    rate = int(size / (10 + seconds))
    env.set_quota("producer_byte_rate", rate, client_id="app")
    return int((size / 10 - rate) / rate * 10_000 + 0.5)


def test_produce_over_its_quota_is_answered_with_the_throttle_time(env, client) -> None:
    throttle_ms = limit(env, 5)
    client.send(produce())
    assert produced(client) == throttle_ms
    assert 5000 <= throttle_ms < 5200


def test_muted_connection_starts_no_request_until_the_time_is_over(env, client) -> None:
    throttle_ms = limit(env, 5)
    client.send(produce(), metadata())
    assert produced(client) == throttle_ms
    env.clock.advance(throttle_ms / 1000 - 0.001)
    assert client.receive() == []
    env.clock.advance(0.001)
    assert receive(client, MetadataResponse, 4).throttle_time_ms == 0


@pytest.mark.parametrize("version", [0, 1, 2, 3, 5, 7, 8, 9, 12])
def test_every_version_is_answered_at_once_and_muted(env, client, version) -> None:
    records = RECORDS
    if version < 3:
        # A message set would need another batch; refused requests count as well.
        records = b""
    sent = frame(produce_request("orders", records, version, -1), version)
    env.set_quota("producer_byte_rate", 1, client_id="app")
    client.send(sent, produce())
    (reply,) = client.receive()
    decoded = ProduceResponse.decode(reply[5 if version >= 9 else 4 :], version=version)
    assert getattr(decoded, "throttle_time_ms", 0) == (
        1000 * len(sent) - 10_000 if version >= 1 else 0
    )
    env.clock.advance(len(sent) - 10 - 0.01)
    assert client.receive() == []


def test_other_clients_and_quotas_are_not_affected(env, client) -> None:
    limit(env, 5)
    other = MemoryClient(broker=env.broker, listener="PLAINTEXT")
    client.send(produce())
    other.send(produce(client_id="other"), produce(client_id=None))
    assert [len(one.receive()) for one in (client, other)] == [1, 2]


def test_second_connection_of_the_client_is_throttled_as_well(env, client) -> None:
    throttle_ms = limit(env, 5)
    client.send(produce())
    other = MemoryClient(broker=env.broker, listener="PLAINTEXT")
    other.send(produce())
    assert (produced(client), produced(other) > throttle_ms + 10_000) == (throttle_ms, True)


def test_removed_quota_applies_at_once(env, client) -> None:
    throttle_ms = limit(env, 5)
    client.send(produce())
    assert produced(client) == throttle_ms
    env.set_quota("producer_byte_rate", None, client_id="app")
    env.clock.advance(throttle_ms / 1000)
    client.send(produce())
    assert produced(client) == 0


def test_produce_without_reply_is_throttled(env, client) -> None:
    throttle_ms = limit(env, 5)
    client.send(produce(acks=0), metadata())
    env.clock.advance(throttle_ms / 1000 - 0.001)
    assert client.receive() == []
    env.clock.advance(0.001)
    assert len(client.receive()) == 1


def test_overlapping_produces_are_muted_for_the_longest_time(env, client) -> None:
    limit(env, 5)
    env.store.hold()
    client.send(produce(), produce(), metadata())
    env.store.release()
    replies = [ProduceResponse.decode(one[4:], version=7) for one in client.receive()]
    longest = max(one.throttle_time_ms for one in replies)
    assert longest > 15_000
    env.clock.advance(longest / 1000 - 0.01)
    assert client.receive() == []
    env.clock.advance(0.01)
    assert len(client.receive()) == 1


def test_there_is_one_timer_per_muted_connection_and_none_after_it_closed(env, client) -> None:
    def timers() -> int:
        return sum("_unmute" in str(call) for call in env.clock.getDelayedCalls())

    limit(env, 5)
    env.store.hold()
    client.send(produce(), produce(), produce())
    env.store.release()
    assert len(client.receive()) == 3
    assert timers() == 1
    client.disconnect()
    assert timers() == 0


def test_bytes_count_although_the_client_disconnects_before_the_reply(env, client) -> None:
    throttle_ms = limit(env, 5)
    env.store.hold()
    client.send(produce())
    client.disconnect()
    env.store.release()
    other = MemoryClient(broker=env.broker, listener="PLAINTEXT")
    other.send(produce())
    assert produced(other) > throttle_ms + 10_000


def test_muted_client_that_keeps_sending_is_not_read(env) -> None:
    client = MemoryClient(
        broker=env.broker, listener="PLAINTEXT", max_bytes=1 << 20, max_requests=1000
    )
    limit(env, 5)
    client.send(produce())
    client.receive()
    size = 0
    while client.is_read:
        client.send(produce())
        size += len(produce())
        assert size < MAX_BYTES_BEHIND_WAITING_REQUEST + 2 * len(produce())
    # It is read again, once it is served.
    env.set_quota("producer_byte_rate", None, client_id="app")
    env.clock.advance(6)
    assert client.is_read
    assert len(client.receive()) == size // len(produce())


def test_shutdown_does_not_wait_for_muted_connections(env, client) -> None:
    limit(env, 500)
    client.send(produce(), produce(), metadata())
    assert len(client.receive()) == 1
    assert not client.dispatch.is_idle
    client.dispatch.end_throttling()
    assert len(client.receive()) == 2
    client.send(produce())
    client.send(metadata())
    assert len(client.receive()) == 2
    assert client.dispatch.is_idle


def fetch_limit(env: BrokerEnvironment, rate: int) -> None:
    env.set_quota("consumer_byte_rate", rate, client_id="app")


def fetched(client: MemoryClient, version: int = 4) -> tuple[int, int]:
    """The throttle time and the bytes of records."""
    reply = receive(client, FetchResponse, version)
    size = sum(len(row.records) for topic in reply.responses for row in topic.partitions)
    return reply.throttle_time_ms, size


def reply_bytes(topics: int = 1) -> int:
    """A Fetch reply in v4 as Kafka counts it (FetchResponse.sizeOf): its length, throttle time,
    topic count, name, partition count, partition, offsets, aborted transactions, records.
    """
    return 4 + 4 + 4 + topics * (2 + len("orders") + 4 + 4 + 2 + 8 + 8 + 4 + 4 + len(RECORDS))


def test_fetch_over_its_quota_gets_an_empty_reply_that_does_not_count(env, client) -> None:
    client.send(produce())
    client.receive()
    size = reply_bytes()
    fetch_limit(env, size // 10 - 1)
    client.send(fetch())
    # Cut to the quota of 10 s, but one batch is always returned; it is over the quota.
    rate = size // 10 - 1
    throttle_ms = int((size / 10 - rate) / rate * 10_000 + 0.5)
    assert fetched(client) == (throttle_ms, 0)
    env.clock.advance(throttle_ms / 1000)
    fetch_limit(env, size // 10 + 1)
    client.send(fetch())
    assert fetched(client) == (0, len(RECORDS))


def test_fetch_is_cut_to_the_quota_of_a_window(env, client) -> None:
    for _ in range(5):
        client.send(produce())
    client.receive()
    fetch_limit(env, (3 * len(RECORDS) - 50) // 10)
    client.send(fetch())
    # The third would be over the quota in any case.
    assert fetched(client) == (0, 2 * len(RECORDS))


def test_throttled_fetch_keeps_its_session(env, client) -> None:
    client.send(produce())
    client.receive()

    def in_session(session_id: int, epoch: int, *, is_full: bool = False) -> Any:
        message = fetch_request("orders", 0, 7)
        message.session_id, message.session_epoch = session_id, epoch
        message.forgotten_topics_data = []
        if not is_full:
            message.topics = []
        client.send(frame(message, 7))
        return receive(client, FetchResponse, 7)

    fetch_limit(env, 100)
    throttled = in_session(0, 0, is_full=True)
    assert (throttled.session_id, list(throttled.responses)) == (0, [])
    assert throttled.throttle_time_ms > 0
    assert len(env.broker.fetch_sessions) == 0
    env.clock.advance(throttled.throttle_time_ms / 1000)
    fetch_limit(env, 10**9)
    opened = in_session(0, 0, is_full=True)
    assert opened.session_id > 0
    client.send(produce())
    client.receive()
    fetch_limit(env, 100)
    throttled = in_session(opened.session_id, 1)
    assert (throttled.session_id, list(throttled.responses)) == (opened.session_id, [])
    assert throttled.throttle_time_ms > 0
    env.clock.advance(throttled.throttle_time_ms / 1000)
    fetch_limit(env, 10**9)
    # What the throttled reply left out is in the next one.
    reply = in_session(opened.session_id, 2)
    assert (reply.error_code, len(reply.responses[0].partitions[0].records)) == (
        0,
        2 * len(RECORDS),
    )


def test_offsets_that_a_throttled_reply_left_out_are_sent_later(env, client) -> None:
    env.topic("empty")

    def in_session(session_id: int, epoch: int, *topics: str) -> Any:
        message = fetch_request("orders", 0, 7, max_wait_ms=100)
        message.session_id, message.session_epoch = session_id, epoch
        message.forgotten_topics_data = []
        message.topics = [fetch_request(name, 0, 7).topics[0] for name in topics]
        client.send(frame(message, 7))
        env.clock.advance(0.1)
        return receive(client, FetchResponse, 7)

    session_id = in_session(0, 0, "orders").session_id
    fetch_limit(env, 1)
    throttled = in_session(session_id, 1, "empty")
    assert throttled.throttle_time_ms > 0
    env.clock.advance(throttled.throttle_time_ms / 1000)
    fetch_limit(env, 10**9)
    # A partition without records: its first offsets are sent once.
    (topic,) = in_session(session_id, 2).responses
    assert (topic.topic, topic.partitions[0].high_watermark) == ("empty", 0)
    assert list(in_session(session_id, 3).responses) == []


class Ticks:
    """Each step of a request takes `ns`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns, self.now = 0, 1
        monkeypatch.setattr(request_time, "perf_counter_ns", self.tick)

    def tick(self) -> int:
        self.now += self.ns
        return self.now


@pytest.mark.parametrize("version", [1, 2, 3, 4, 8, 12])
def test_request_over_the_quota_of_time_is_throttled(env, client, monkeypatch, version) -> None:
    ticks = Ticks(monkeypatch)
    env.set_quota("request_percentage", 1, user="ANONYMOUS")
    # 150 ms of 10 s are 1.5 %: 5 s, at most 1 s.
    ticks.ns = 150_000_000
    client.send(metadata(version), metadata(version))
    (reply,) = client.receive()
    decoded = MetadataResponse.decode(reply[5 if version >= 9 else 4 :], version=version)
    assert getattr(decoded, "throttle_time_ms", 0) == (1000 if version >= 3 else 0)
    env.clock.advance(0.999)
    assert client.receive() == []
    env.clock.advance(0.001)
    assert len(client.receive()) == 1


def test_cached_reply_has_the_throttle_time_for_its_client_only(env, client, monkeypatch) -> None:
    ticks = Ticks(monkeypatch)
    client.send(metadata())
    before = client.receive()
    env.set_quota("request_percentage", 1, client_id="app")
    ticks.ns = 150_000_000
    client.send(metadata())
    assert receive(client, MetadataResponse, 4).throttle_time_ms == 1000
    other = MemoryClient(broker=env.broker, listener="PLAINTEXT")
    other.send(frame(MetadataRequest(version=4, topics=None), 4, "other"))
    assert other.receive() == before


def test_waiting_fetch_does_not_use_up_time(env, client, monkeypatch) -> None:
    ticks = Ticks(monkeypatch)
    env.set_quota("request_percentage", 1, user="ANONYMOUS")
    client.send(fetch(max_wait_ms=30_000))
    ticks.now += 30 * 10**9
    env.clock.advance(30)
    assert receive(client, FetchResponse, 4).throttle_time_ms == 0


def test_api_versions_is_throttled_after_the_login_only(env, monkeypatch) -> None:
    ticks = Ticks(monkeypatch)
    env.set_quota("request_percentage", 1, user="ANONYMOUS")
    ticks.ns = 150_000_000
    client = MemoryClient(broker=env.broker, listener="PLAINTEXT")
    asked = ApiVersionsRequest(version=1)
    client.send(frame(asked, 1))
    assert receive(client, ApiVersionsResponse, 1).throttle_time_ms == 1000
    secured = MemoryClient([], broker=env.broker)

    secured = MemoryClient([ScriptedMechanism("PLAIN", {b"t": b""})], broker=env.broker)
    secured.send(frame(asked, 1))
    assert receive(secured, ApiVersionsResponse, 1).throttle_time_ms == 0


class ThrottleTimes(Recorder):
    """The throttle times that the traffic log gets."""

    def __init__(self) -> None:
        self.ms: list[int] = []

    def request_answered(self, request: Any, reply: Any, size: int) -> None:
        self.ms.append(request.throttle_ms)


def test_traffic_log_gets_throttle_times(env) -> None:
    told = ThrottleTimes()
    client = MemoryClient(broker=env.broker, listener="PLAINTEXT", record=lambda _: told)
    client.send(produce())
    throttle_ms = limit(env, 5)
    client.send(produce())
    assert told.ms == [0, throttle_ms]


def test_without_quotas_nothing_is_counted(env, client) -> None:
    client.send(produce())
    assert produced(client) == 0
    assert len(env.broker.quota_usage) == 0


def test_time_of_a_request_counts_although_the_client_disconnects(env, client, monkeypatch) -> None:
    ticks = Ticks(monkeypatch)
    env.set_quota("request_percentage", 1, user="ANONYMOUS")
    ticks.ns = 60_000_000
    client.send(fetch(max_wait_ms=30_000))
    client.disconnect()
    other = MemoryClient(broker=env.broker, listener="PLAINTEXT")
    other.send(metadata())
    assert receive(other, MetadataResponse, 4).throttle_time_ms > 0


def test_long_client_id_is_not_kept_by_its_connection(env, client) -> None:
    env.set_quota("producer_byte_rate", 1, client_id="x" * 3000)
    for _ in range(2):
        client.send(produce(client_id="x" * 3000))
        assert produced(client) > 0
        assert client.dispatch._client_usage is None
        client.dispatch.end_throttling()


def test_bytes_of_a_malformed_produce_count(env, client) -> None:
    limit(env, 5)
    client.send(produce()[:-1])
    assert client.is_aborted
    other = MemoryClient(broker=env.broker, listener="PLAINTEXT")
    other.send(produce())
    assert produced(other) > 15_000
