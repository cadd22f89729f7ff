"""Stored rows keep the bytes of earlier versions, whatever their classes and fields are called.

The expected bytes were written before the classes got their current names. Rows of msgpack are
arrays, so the order of the fields is part of the format; rows of JSON contain the names.
"""

from __future__ import annotations

import msgspec
import pytest

from gateway.compaction import CleanerCheckpoint
from gateway.groups.classic import classic_rows
from gateway.groups.consumer import consumer_rows
from gateway.groups.consumer.consumer_member import (
    ClassicMemberMetadata,
    ConsumerGroupMember,
    MemberState,
)
from gateway.groups.offsets import offset_rows
from gateway.partitions.latest_records import DeleteHorizon
from gateway.partitions.producer_state import ProducerStateManager, StoredBatch
from gateway.security import client_quotas
from gateway.security.quotas import QuotaEntity
from storage.lmdb import layout
from storage.log import Topic
from storage.plain_records import ProducerSequence
from storage.pulsar.compaction.replaced_ranges import ReplacedRange
from storage.pulsar.lock import LockHolder
from storage.pulsar.log import partition_rows
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.native.record_messages import RecordDetails
from storage.pulsar.topics.topic_rows import DeletedTopic, LoggedTopic, topic_key

TIME = 1_700_000_000_000
TIME_BYTES = b"\xcf\x00\x00\x01\x8b\xcf\xe5h\x00"
TOPIC_ID = b"t" * 16

ARRAYS = {
    "client quotas": (
        client_quotas._Row(QuotaEntity("alice", None), {"producer_byte_rate": 1024.0}),
        b"\x92\x92\xa5alice\xc0\x81\xb2producer_byte_rate\xcb@\x90\0\0\0\0\0\0",
    ),
    "classic group": (
        classic_rows.GroupRow(
            generation=7,
            protocol_type="consumer",
            protocol="range",
            leader="m-1",
            changed_at=TIME,
            members=(
                classic_rows.MemberRow(
                    member_id="m-1",
                    instance_id="one",
                    client_id="client",
                    client_host="/10.0.0.1",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=60_000,
                    protocols=(("range", b"\0\xff"),),
                    assignment=b"assigned",
                ),
            ),
        ),
        b"\x96\x07\xa8consumer\xa5range\xa3m-1" + TIME_BYTES + b"\x91\x98\xa3m-1\xa3one\xa6client"
        b"\xa9/10.0.0.1\xcd'\x10\xcd\xea`\x91\x92\xa5range\xc4\x02\x00\xff\xc4\x08assigned",
    ),
    "consumer group": (
        consumer_rows.ConsumerGroupRow(
            epoch=7,
            target_epoch=6,
            next_number=3,
            topics_digest=b"12345678",
            changed_at=TIME,
            regex_topics={"a.*": frozenset({"a1"})},
        ),
        b"\x96\x07\x06\x03\xc4\x0812345678" + TIME_BYTES + b"\x81\xa3a.*\x91\xa2a1",
    ),
    "member of a consumer group": (
        ConsumerGroupMember(
            number=2,
            member_id="m",
            instance_id="i",
            rack_id="r",
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=60_000,
            topics=frozenset({"a"}),
            regex="a.*",
            assignor="range",
            classic=ClassicMemberMetadata(45_000, (("range", b"\0\1"),)),
            state=MemberState.UNREVOKED,
            epoch=6,
            previous_epoch=5,
            assigned={b"a" * 16: {0: 5}},
            revoking={b"a" * 16: {2: 4}},
            target={b"b" * 16: frozenset({0})},
        ),
        b"\xdc\x00\x11\x02\xa1m\xa1i\xa1r\xa1c\xa2/h\xcd\xea`\x91\xa1a\xa3a.*\xa5range\x92\xcd\xaf\xc8"
        b"\x91\x92\xa5range\xc4\x02\x00\x01\x02\x06\x05\x81\xc4\x10aaaaaaaaaaaaaaaa\x81\x00\x05\x81"
        b"\xc4\x10aaaaaaaaaaaaaaaa\x81\x02\x04\x81\xc4\x10bbbbbbbbbbbbbbbb\x91\x00",
    ),
    "committed offset": (
        offset_rows.CommittedOffset(
            offset=17,
            leader_epoch=3,
            metadata="note é",
            committed_at=TIME,
            expires_at=TIME + 100_000,
        ),
        b"\x95\x11\x03\xa7note \xc3\xa9" + TIME_BYTES + b"\xcf\x00\x00\x01\x8b\xcf\xe6\xee\xa0",
    ),
    "batch of an idempotent producer": (
        StoredBatch(
            epoch=1,
            first_sequence=0,
            last_sequence=9,
            base_offset=100,
            last_offset=109,
            log_append_time=-1,
        ),
        b"\x96\x01\x00\tdm\xff",
    ),
    "progress of compaction": (
        CleanerCheckpoint(
            end=900, clean_bytes=5000, start=10, horizons=[DeleteHorizon(end=500, time=TIME)]
        ),
        b"\x94\xcd\x03\x84\xcd\x13\x88\n\x91\x92\xcd\x01\xf4" + TIME_BYTES,
    ),
    "partition on Pulsar": (
        partition_rows.PartitionRow(
            start_offset=1,
            start_bytes=2,
            reserved=3,
            epochs=((4, 5),),
            format_ranges=(partition_rows.FormatRange(first_offset=6, base=7),),
            generation=8,
            written=9,
            trim_offset=10,
            trim_bytes=11,
        ),
        b"\x99\x01\x02\x03\x91\x92\x04\x05\x91\x92\x06\x07\x08\t\n\x0b",
    ),
    "compacted range on Pulsar": (
        ReplacedRange(
            first=1,
            last=2,
            bytes_before=3,
            hidden_bytes=4,
            size=5,
            generation=6,
            ledger_id=7,
            entry_id=8,
            messages=9,
            token="token",
            max_timestamp=10,
        ),
        b"\x9b\x01\x02\x03\x04\x05\x06\x07\x08\t\xa5token\n",
    ),
    "topic in the metadata log": (
        LoggedTopic(
            name="t",
            topic_id=TOPIC_ID,
            partitions=3,
            configs={"a": "b"},
            full_name="f",
            is_partitioned=True,
            entry_format="kafka",
            retention="1 2",
            is_being_deleted=False,
        ),
        b"\x99\xa1t\xc4\x10" + TOPIC_ID + b"\x03\x81\xa1a\xa1b\xa1f\xc3\xa5kafka\xa31 2\xc2",
    ),
    "deleted topic in the metadata log": (
        DeletedTopic(name="t", topic_id=TOPIC_ID, partitions=3, number=7),
        b"\x94\xa1t\xc4\x10" + TOPIC_ID + b"\x03\x07",
    ),
}

TEXTS = {
    "owner of the store on Pulsar": (
        LockHolder(token="t", node="5", host="h", process=77, since=1.5, said=2.5),
        b'{"token":"t","node":"5","host":"h","process":77,"since":1.5,"said":2.5}',
    ),
    "record in a message of Pulsar": (
        RecordDetails(
            key="base64",
            headers=[["h"], ["n", None], ["bm4=", "dg==", 1]],
            timestamp=5,
            sequence=ProducerSequence(1, 2, 3),
        ),
        b'{"key":"base64","headers":[["h"],["n",null],["bm4=","dg==",1]],"timestamp":5,'
        b'"sequence":[1,2,3]}',
    ),
}


@pytest.mark.parametrize(("row", "stored"), ARRAYS.values(), ids=ARRAYS)
def test_array_row_keeps_its_bytes(row, stored):
    assert msgspec.msgpack.encode(row) == stored
    assert msgspec.msgpack.decode(stored, type=type(row)) == row


@pytest.mark.parametrize(("row", "stored"), TEXTS.values(), ids=TEXTS)
def test_json_row_keeps_its_bytes(row, stored):
    assert msgspec.json.encode(row) == stored
    assert msgspec.json.decode(stored, type=type(row)) == row


def test_producer_snapshot_keeps_its_bytes():
    stored = b"\x92\xcc\xc8\x91\x93\x04" + TIME_BYTES + b"\x91\x96\x01\x00\tdm\xff"
    producers = ProducerStateManager(10)
    assert producers.load(stored) == 200
    assert producers.snapshot(200) == stored


def test_keys_keep_their_bytes():
    assert topic_key("é") == b"\xc3\xa9"
    assert classic_rows.row_key("orders") == b"orders"
    assert consumer_rows.row_key("orders", 2) == b"\xff\x00\x00\x00\x02orders"
    key = offset_rows.OffsetKey("group", TOPIC_ID, 5)
    assert offset_rows.encode_key(key) == TOPIC_ID + b"\x00\x00\x00\x05group"
    partition = partition_rows.partition_key(TOPIC_ID, 3)
    assert partition == TOPIC_ID + b"\x00\x00\x00\x03"
    replaced, _ = ARRAYS["compacted range on Pulsar"]
    assert partition_rows.replaced_range_row(partition, replaced)[0] == (
        partition + b"\x00\x00\x00\x00\x00\x00\x00\x01"
    )


def test_embedded_store_keeps_its_layout():
    row = layout.TopicRow(Topic("orders", TOPIC_ID, 2, {"retention.ms": "5"}), (7, 8))
    stored = (
        b'{"topic_id":"74747474747474747474747474747474","configs":{"retention.ms":"5"},'
        b'"log_ids":[7,8]}'
    )
    assert layout.encode_topic(row) == stored
    assert layout.decode_topic("orders", stored) == row
    names = ("meta", "topics", "logs", "entries", "freeing", "table_names", "tables")
    # Format 3 added one; opening a store of format 1 creates it.
    assert sorted([*names, "segments"]) == sorted(layout.DATABASES)


def test_message_on_pulsar_keeps_its_properties():
    header = Header(
        base_offset=1,
        last_offset=2,
        max_timestamp=3,
        bytes_before=4,
        leader_epoch=5,
        greatest_timestamp=6,
        entries=7,
    )
    assert header.properties("kafka") == {"entry.format": "kafka", "kopgate": "[1,1,2,3,4,5,6,7]"}
