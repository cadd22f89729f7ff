"""Rows of a connection's requests; expected values are calculated manually."""

from __future__ import annotations

from itertools import count

import pytest
from kafka.protocol.admin.topics import CreateTopicsRequest
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from auth.mechanism import ANONYMOUS
from gateway.fetch import conversion_calls
from gateway.handlers.old import produce_message_sets
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import FetchRequest as FetchAsked
from gateway.protocol.wire.fetch_codec import FetchResponse, PartitionFetched
from records import Codec
from tests.fakes.broker import NOW, ended
from tests.fakes.connection import request
from tests.fakes.traffic import INTERVAL, TrafficScenario
from tests.gateway.handlers.groups.group_requests import join_request
from tests.records.record_sets import batch, old_set

UNKNOWN_TOPIC = 3


@pytest.fixture
def scene():
    scene = TrafficScenario()
    scene.env.topic("orders", 2)
    return scene


def producing(version, topics, acks=-1, timeout_ms=1234):
    """Return a Produce request: by topic name, the record sets of partitions 0, 1 and so on."""
    data = ProduceRequest.TopicProduceData
    rows = [
        data(
            name=name,
            partition_data=[
                data.PartitionProduceData(index=index, records=bytes(one))
                for index, one in enumerate(sets)
            ],
        )
        for name, sets in topics.items()
    ]
    return ProduceRequest(
        version=version, transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=rows
    )


def fetching(version, topic="orders", offset=0, partition=0, max_wait_ms=0):
    asked = FetchRequest.FetchTopic(
        topic=topic,
        partitions=[
            FetchRequest.FetchTopic.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
            )
        ],
    )
    return FetchRequest(
        version=version, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=5 << 20, topics=[asked]
    )


def test_produce_is_counted_in_total_and_by_topic(scene):
    scene.env.topic("bills")
    first, second, third = batch(3), batch(20, codec=1), batch(1)
    frame = request(producing(7, {"orders": [first, second], "bills": [third]}))
    client = scene.connect()
    client.send(frame)
    (reply,) = client.receive()
    scene.disconnect(client)
    whole = scene.usage(api_key=0, topic=None)
    assert (whole["api_version"], whole["requests"]) == (7, 1)
    assert (whole["bytes_in"], whole["bytes_out"]) == (len(frame) + 4, len(reply) + 4)
    assert {"records", "magic_in", "codec_in", "errors"} & set(whole) == set()
    orders, bills = scene.usage(api_key=0, topic="orders"), scene.usage(api_key=0, topic="bills")
    assert (orders["records"], orders["bytes_in"]) == (23, len(first) + len(second))
    assert (orders["magic_in"], orders["codec_in"]) == ({"2": 2}, {"none": 1, "gzip": 1})
    assert (bills["records"], bills["bytes_in"]) == (1, len(third))
    assert {"requests", "bytes_out", "latency_us_sum", "latency_us_buckets"} & (
        set(orders) | set(bills)
    ) == set()
    assert whole["peer"] == orders["peer"] == scene.event("opened")["peer"]


def test_message_sets_are_counted_by_format_and_codec(scene):
    client = scene.connect()
    client.send(
        request(producing(1, {"orders": [old_set(3, magic=0)]})),
        request(producing(2, {"orders": [old_set(4, magic=1, codec=2)]})),
    )
    scene.disconnect(client)
    oldest, old = (
        scene.usage(api_key=0, api_version=version, topic="orders") for version in (1, 2)
    )
    assert (oldest["records"], oldest["magic_in"], oldest["codec_in"]) == (3, {"0": 1}, {"none": 1})
    assert (old["records"], old["magic_in"], old["codec_in"]) == (4, {"1": 1}, {"snappy": 1})


def test_rejected_records_count_only_as_error_of_topic(scene):
    bad = bytearray(batch(3))
    bad[-1] ^= 1
    client = scene.connect()
    client.send(request(producing(7, {"orders": [bad], "nowhere": [batch(1)]})))
    scene.disconnect(client)
    orders, nowhere = (
        scene.usage(api_key=0, topic="orders"),
        scene.usage(api_key=0, topic="nowhere"),
    )
    assert (orders["errors"], nowhere["errors"]) == ({"2": 1}, {str(UNKNOWN_TOPIC): 1})
    assert {"records", "bytes_in", "magic_in"} & set(orders) == set()


def test_fetch_of_stored_records_counts_no_conversion(scene):
    stored = batch(5, codec=1)
    client = scene.connect()
    client.send(request(producing(7, {"orders": [stored]})), request(fetching(4)))
    scene.disconnect(client)
    told = scene.usage(api_key=1, topic="orders")
    assert (told["records"], told["bytes_out"], told["magic_out"], told["codec_out"]) == (
        5,
        len(stored),
        {"2": 1},
        {"gzip": 1},
    )
    assert {"conversions", "conversion_cpu_us", "bytes_in"} & set(told) == set()


def test_fetch_by_old_consumer_counts_conversion(scene):
    stored = batch(5)
    client = scene.connect()
    client.send(
        request(producing(7, {"orders": [stored]})), request(fetching(1)), request(fetching(1))
    )
    scene.disconnect(client)
    told = scene.usage(api_key=1, api_version=1, topic="orders")
    assert (told["conversions"], told["converted_records"], told["converted_bytes"]) == (
        2,
        10,
        2 * len(stored),
    )
    assert told["magic_out"] == {"0": 2}
    # The number of messages in a set of an old format is unknown without reading all of it.
    assert "records" not in told


def test_conversion_on_append_is_counted_for_producer():
    scene = TrafficScenario()
    scene.env.topic("kept", entry_format="kafka")
    sent = old_set(4, magic=1)
    client = scene.connect()
    client.send(request(producing(2, {"kept": [sent]})))
    scene.disconnect(client)
    told = scene.usage(api_key=0, topic="kept")
    assert (told["conversions"], told["converted_records"], told["converted_bytes"]) == (
        1,
        4,
        len(sent),
    )
    assert (told["records"], told["magic_in"]) == (4, {"1": 1})


@pytest.fixture
def conversions_of_7_us(monkeypatch):
    """Use a manual clock that advances 7 us per conversion."""
    clock = count(0, 7_000)
    for module in (conversion_calls, produce_message_sets):
        monkeypatch.setattr(module, "thread_time_ns", lambda: next(clock))


@pytest.mark.usefixtures("conversions_of_7_us")
def test_first_fetcher_is_charged_for_conversion_of_compressed_batch(scene):
    clients = [scene.connect()]
    clients[0].send(request(producing(7, {"orders": [batch(5, codec=Codec.LZ4)]})))
    recorders = [scene.recorder]
    clients.append(scene.connect())
    recorders.append(scene.recorder)
    told = []
    for client, recorder in zip(clients, recorders, strict=True):
        client.send(request(fetching(1)))
        told += [
            row
            for row in recorder.take_usage_rows()
            if row.api_key == ApiKey.FETCH and row.topic == "orders"
        ]
    assert [(row.conversions, row.conversion_cpu_us) for row in told] == [(1, 7), (1, 0)]


@pytest.mark.usefixtures("conversions_of_7_us")
def test_producer_is_charged_for_each_conversion(scene):
    scene.env.topic("kept", entry_format="kafka")
    client = scene.connect()
    for records in (old_set(4, magic=1), old_set(4, magic=1), batch(4)):
        client.send(
            request(
                producing(7 if records[16] == 2 else 2, {"kept": [records], "orders": [records]})
            )
        )
    scene.disconnect(client)
    assert scene.usage(api_key=0, api_version=2, topic="kept")["conversion_cpu_us"] == 2 * 7
    assert [row["topic"] for row in scene.rows("usage") if row.get("conversion_cpu_us")] == ["kept"]


def test_partition_errors_are_counted_per_topic_and_session_errors_without_topic(scene):
    client = scene.connect()
    lost = FetchRequest(
        version=7,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1,
        session_id=5,
        session_epoch=9,
        topics=[],
        forgotten_topics_data=[],
    )
    client.send(request(fetching(4, offset=77)), request(lost))
    scene.disconnect(client)
    assert scene.usage(api_key=1, topic="orders")["errors"] == {"1": 1}
    assert scene.usage(api_key=1, api_version=7, topic=None)["errors"] == {"70": 1}


def test_topic_given_by_id_is_recorded_by_name(scene):
    topic_id = scene.env.broker.topics.get("orders").topic.topic_id
    recorder = scene.log.connection(*_someone(scene))
    recorder.topic_accessed(ApiKey.FETCH, 13, topic_id)
    recorder.topic_accessed(ApiKey.FETCH, 13, bytes(15) + b"\1")
    recorder.closed("client")
    assert {row.get("topic") for row in scene.rows("usage")} == {
        "orders",
        "id:AAAAAAAAAAAAAAAAAAAAAQ",
    }


def _someone(scene):
    scene.connect()
    return scene.recorder._peer, ANONYMOUS


def test_group_requests_are_recorded_with_group(scene):
    client = scene.connect()
    commit = OffsetCommitRequest(
        version=2,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=-1,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=5, committed_metadata="note"
                    )
                ],
            )
            for name in ("orders", "nowhere")
        ],
    )
    asked = OffsetFetchRequest(
        version=1,
        group_id="g",
        topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])],
    )
    client.send(request(commit))
    client.send(request(asked))
    client.run_reactor()
    scene.disconnect(client)
    for api_key in (8, 9):
        assert scene.usage(api_key=api_key, topic=None)["group"] == "g"
        assert scene.usage(api_key=api_key, topic=None)["requests"] == 1
        assert scene.usage(api_key=api_key, topic="orders")["group"] == "g"
        assert "errors" not in scene.usage(api_key=api_key, topic="orders")
    assert scene.usage(api_key=8, topic="nowhere")["errors"] == {str(UNKNOWN_TOPIC): 1}


def test_names_of_bound_clients_are_those_of_the_cluster(scene):
    scene.env.store.has_namespaces = True
    scene.env.topic("acme/sales/orders")
    client = scene.connect()
    bound = scene.env.bound_to("acme/sales").session
    client.session.principal, client.session.scope = bound.principal, bound.scope
    row = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [row(name=name, partition_indexes=[0]) for name in ("orders", "rival/shop/orders")]
    client.send(request(OffsetFetchRequest(version=1, group_id="g", topics=topics)))
    client.run_reactor()
    scene.disconnect(client)
    for topic in (None, "persistent://acme/sales/orders", "rival/shop/orders"):
        assert scene.usage(api_key=9, topic=topic)["group"] == "acme/sales/g"


def test_member_rows_have_habits(scene):
    frame = join_request()
    frame.API_VERSION = 5
    client = scene.connect()
    client.send(request(frame))
    scene.disconnect(client)
    told = scene.usage(api_key=11)
    # MEMBER_ID_REQUIRED: the member joins again with the id it received.
    assert (told["group"], told["errors"]) == ("g", {"79": 1})
    assert scene.event("closed")["habits"] == {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocols": ["range"],
    }


def test_habits_are_those_of_first_request(scene):
    client = scene.connect()
    client.send(
        request(producing(7, {"orders": [batch(1)]}, acks=1, timeout_ms=111)),
        request(producing(7, {"orders": [batch(1)]})),
    )
    client.send(request(fetching(4)), request(fetching(2)))
    scene.disconnect(client)
    assert scene.event("closed")["habits"] == {
        "acks": 1,
        "produce_timeout_ms": 111,
        "fetch_max_wait_ms": 0,
        "fetch_min_bytes": 1,
        "fetch_max_bytes": 5 << 20,
        "isolation_level": 0,
        "partition_max_bytes": 1 << 20,
    }


@pytest.mark.parametrize(("epoch", "has_session"), [(-1, False), (0, True), (3, True)])
def test_fetch_session_is_a_habit(scene, epoch, has_session):
    frame = fetching(7)
    frame.session_epoch = epoch
    client = scene.connect()
    client.send(request(frame))
    scene.disconnect(client)
    assert scene.event("closed")["habits"]["fetch_session"] is has_session


def test_nested_errors_are_counted_for_request(scene):
    created = CreateTopicsRequest.CreatableTopic(
        name="orders", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    listed = ListOffsetsRequest.ListOffsetsTopic(
        name="orders",
        partitions=[
            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=9, timestamp=-1
            )
        ],
    )
    client = scene.connect()
    client.send(
        request(
            CreateTopicsRequest(version=2, topics=[created], timeout_ms=1000, validate_only=False)
        )
    )
    client.send(request(ListOffsetsRequest(version=1, replica_id=-1, topics=[listed])))
    client.send(
        request(
            MetadataRequest(
                version=4,
                topics=[MetadataRequest.MetadataRequestTopic(name="no")],
                allow_auto_topic_creation=False,
            )
        )
    )
    scene.disconnect(client)
    assert scene.usage(api_key=19)["errors"] == {"36": 1}
    assert scene.usage(api_key=2, topic="orders")["errors"] == {"3": 1}
    assert "errors" not in scene.usage(api_key=2, topic=None)
    assert scene.event("closed")["habits"] == {"metadata_all": False, "auto_create": False}
    assert scene.usage(api_key=3)["errors"] == {"3": 1}


def test_latency_is_measured_from_start_of_processing(scene):
    client = scene.connect()
    scene.env.threads.hold()
    client.send(request(fetching(4, max_wait_ms=500)))
    scene.ticks += 300_000_000
    scene.env.clock.advance(0.5)
    client.run_reactor()
    scene.disconnect(client)
    told = scene.usage(api_key=1, topic=None)
    assert told["latency_us_sum"] == 300_000
    assert told["latency_us_buckets"] == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_unanswered_request_counts_without_latency(scene):
    client = scene.connect()
    client.send(request(fetching(4, max_wait_ms=500)))
    scene.disconnect(client)
    told = scene.usage(api_key=1, topic=None)
    assert told["requests"] == 1
    assert {"latency_us_sum", "latency_us_buckets", "bytes_out"} & set(told) == set()
    assert scene.event("closed")["requests"] == 1


def test_idle_interval_has_no_rows(scene):
    scene.log.start()
    client = scene.connect()
    client.send(request(producing(7, {"orders": [batch(2)]})))
    scene.env.clock.pump([1] * INTERVAL)
    assert scene.usage(api_key=0, topic="orders")["records"] == 2
    scene.env.clock.pump([1] * INTERVAL)
    client.send(request(producing(7, {"orders": [batch(3)]})))
    scene.env.clock.pump([1] * INTERVAL)
    first, second = scene.rows("usage", api_key=0, topic="orders")
    assert (first["records"], second["records"]) == (2, 3)
    assert NOW == first["began"] < first["at"] <= NOW + INTERVAL * 1000 < second["began"]
    assert second["at"] - second["began"] == INTERVAL * 1000
    scene.disconnect(client)
    assert scene.event("closed")["requests"] == 2
    assert len(scene.rows("usage", api_key=0)) == 4


def test_open_connection_writes_settled_row_once(scene):
    scene.log.start()
    client = scene.connect()
    for minutes in (1, 2, 3, 4):
        assert len(scene.rows("connection", event="settled")) == (1 if minutes > 3 else 0)
        client.send(request(producing(7, {"orders": [batch(1)]}, acks=1)))
        scene.env.clock.pump([1] * INTERVAL)
    told = scene.event("settled")
    assert told["habits"]["acks"] == 1
    assert (told["highest"], told["first_requests"], told["requests"]) == ({"0": 7}, ["0:7"] * 3, 3)
    assert "reason" not in told
    scene.disconnect(client)
    assert scene.event("closed")["requests"] == 4


def test_settled_row_follows_last_of_first_requests(scene):
    scene.log.start()
    client = scene.connect()
    client.send(*[request(producing(7, {"orders": [batch(1)]}, acks=1))] * 16)
    scene.env.clock.pump([1] * INTERVAL)
    assert len(scene.event("settled")["first_requests"]) == 16


def test_request_counts_in_interval_of_its_reply(scene):
    client = scene.connect()
    client.send(request(fetching(4, max_wait_ms=500)))
    assert scene.recorder.take_usage_rows() == []
    scene.env.clock.advance(0.5)
    scene.disconnect(client)
    assert scene.usage(api_key=1, topic=None)["requests"] == 1


def test_topics_and_groups_beyond_limit_are_merged():
    scene = TrafficScenario(max_keys=3)
    for number in range(6):
        scene.env.topic(f"t{number}")
    client = scene.connect()
    client.send(request(producing(7, {f"t{number}": [batch(1)] for number in range(6)})))
    client.send(request(producing(3, {"t0": [batch(1)], "t5": [batch(1)]})))
    client.send(request(producing(7, {"t0": [batch(1)]})))
    scene.disconnect(client)
    own = {
        row["topic"]: row["records"] for row in scene.rows("usage", api_version=7) if "topic" in row
    }
    assert own == {"t0": 2, "t1": 1, "t2": 1}
    assert [row["records"] for row in scene.rows("usage", merged=True, api_version=7)] == [3]
    assert [row["records"] for row in scene.rows("usage", merged=True, api_version=3)] == [2]
    assert scene.usage(api_version=7, topic=None, merged=None)["requests"] == 2
    assert scene.event("closed")["requests"] == 3


@pytest.mark.parametrize("jump_ms", [-3_600_000, -(10**12), 3_600_000])
def test_rows_are_consistent_after_clock_jump(scene, jump_ms):
    client = scene.connect()
    client.send(request(producing(7, {"orders": [batch(2)]})))
    scene.log.now = lambda: NOW + jump_ms
    first = scene.recorder.take_usage_rows()
    client.send(request(producing(7, {"orders": [batch(3)]})))
    scene.log.now = lambda: NOW + 1000
    scene.disconnect(client)
    assert all(row.began <= row.at for row in first)
    assert all(row["began"] <= row["at"] for row in scene.rows("usage"))
    assert scene.event("closed")["duration_ms"] == 1000
    assert [row["sequence"] for row in scene.kept.rows] == list(range(len(scene.kept.rows)))


def test_duration_is_not_negative_after_clock_jump(scene):
    client = scene.connect()
    scene.log.now = lambda: NOW - 3_600_000
    scene.disconnect(client)
    assert scene.event("closed")["duration_ms"] == 0


def test_row_limit_applies_per_interval():
    scene = TrafficScenario(max_keys=1, max_rows=1)
    scene.connect()
    recorder = scene.recorder
    for group in ("a", "b"):
        recorder.topic_accessed(ApiKey.OFFSET_FETCH, 1, "orders", group=group)
        assert [(row.topic, row.merged) for row in recorder.take_usage_rows()] == [
            ("orders", False)
        ]


def test_events_after_close_are_ignored(scene):
    client = scene.connect()
    scene.disconnect(client)
    lines = len(scene.kept.rows)
    scene.recorder.topic_accessed(ApiKey.PRODUCE, 3, "orders", [1])
    scene.recorder.closed("client")
    assert len(scene.kept.rows) == lines


def test_requests_with_acks_0_are_counted(scene):
    client = scene.connect()
    client.send(request(producing(7, {"orders": [batch(4)]}, acks=0)))
    scene.disconnect(client)
    assert scene.usage(api_key=0, topic="orders")["records"] == 4
    assert scene.usage(api_key=0, topic=None)["requests"] == 1
    assert ended(scene.env.broker.topics.partition("orders", 0)).log.end_offset == 4


@pytest.mark.parametrize("stored", [b"", b"x" * 10, b"\2" * 40, b"\xff" * 80, b"\1" * 25])
def test_malformed_stored_batch_counts_as_bytes(scene, stored):
    scene.connect()
    scene.recorder.fetched(
        FetchAsked(4, -1, 0, 1, 1, 0, 0, -1, (), ()),
        FetchResponse([("orders", [PartitionFetched(0, 0, records=[stored])])]),
    )
    scene.recorder.closed("client")
    told = scene.usage(api_key=1, topic="orders")
    assert told.get("bytes_out", 0) == len(stored)
    assert {"magic_out", "records"} & set(told) == set()


@pytest.mark.parametrize("content", [b"\1", b"\0"])
def test_connection_without_requests_is_recorded(scene, content):
    client = scene.connect()
    client.send(content)
    scene.disconnect(client)
    assert scene.event("closed")["reason"] == "error:refused"
    assert scene.rows("usage") == []
