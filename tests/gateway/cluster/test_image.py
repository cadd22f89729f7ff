"""Rows of the metadata log: encoding, replay, unknown and unreadable rows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.image import (
    ClusterImage,
    ClusterRow,
    ControllerRow,
    LastAddresses,
    NodeRow,
    ShardRow,
    addresses_key,
    cluster_key,
    controller_key,
    encode_row,
    node_key,
    shard_key,
)

NODE = NodeRow(7, "p1", 5, {"SASL": ("h", 9092)}, "0.1", "host", 77)
LAST = LastAddresses({"SASL": ("h", 9092)})


def test_replayed_rows_are_the_image_and_deleted_rows_are_gone():
    image = ClusterImage()
    rows = {
        cluster_key(): ClusterRow("id", 32),
        controller_key(): ControllerRow(7, "p1", 2),
        node_key(7): NODE,
        shard_key(31): ShardRow(7, 5, 4, 8),
        addresses_key(7): LAST,
    }
    assert image.apply({key: encode_row(row) for key, row in rows.items()}) == []
    assert (image.shard_count, image.controller) == (32, rows[controller_key()])
    assert (image.nodes, image.shards) == ({7: NODE}, {31: ShardRow(7, 5, 4, 8)})
    assert image.last_addresses == {7: LAST}
    image.apply(dict.fromkeys(rows))
    assert (image.shard_count, image.controller, image.nodes, image.shards) == (0, None, {}, {})
    assert image.last_addresses == {}


@pytest.mark.parametrize(
    ("row", "stored"),
    [
        (ClusterRow("id", 32), b"\x92\xa2id\x20"),
        (ControllerRow(7, "p1", 2), b"\x93\x07\xa2p1\x02"),
        (NODE, b"\x97\x07\xa2p1\x05\x81\xa4SASL\x92\xa1h\xcd\x23\x84\xa30.1\xa4host\x4d"),
        (LAST, b"\x91\x81\xa4SASL\x92\xa1h\xcd\x23\x84"),
        (ShardRow(7, 5, 4), b"\x94\x07\x05\x04\xff"),
    ],
)
def test_encoding_of_rows_does_not_change(row, stored):
    assert encode_row(row) == stored


def test_encoding_of_keys_does_not_change():
    assert [cluster_key(), controller_key(), node_key(7), shard_key(31), addresses_key(7)] == [
        b"cluster-row\0",
        b"controller\0",
        b"nodes\x007",
        b"shards\x0031",
        b"node-addresses\x007",
    ]


def test_row_of_a_newer_version_is_read_without_its_new_fields():
    image = ClusterImage()
    image.apply({shard_key(1): msgspec.msgpack.encode([7, 5, 4, -1, "new"])})
    assert image.shards == {1: ShardRow(7, 5, 4)}


def test_unreadable_row_is_reported_until_it_is_replaced():
    image = ClusterImage()
    image.apply({shard_key(1): encode_row(ShardRow(7, 5, 4))})
    assert image.apply({shard_key(1): b"\xc1", b"topics\0x": b"\xc1"}) == [shard_key(1)]
    assert image.unreadable == {shard_key(1)}
    assert image.shards == {1: ShardRow(7, 5, 4)}
    image.apply({shard_key(1): None})
    assert (image.unreadable, image.shards) == (set(), {})


def test_row_whose_key_has_no_number_can_be_deleted():
    image = ClusterImage()
    assert image.apply({b"nodes\0x": encode_row(NODE)}) == [b"nodes\0x"]
    assert image.apply({b"nodes\0x": None}) == []
    assert image.unreadable == set()


@given(st.binary(max_size=20), st.none() | st.binary(max_size=20))
def test_any_row_is_applied_ignored_or_reported(key, value):
    for section in (b"", b"nodes\0", b"shards\0001", b"controller\0", b"cluster\0"):
        ClusterImage().apply({section + key: value})


def test_changes_count_the_rows_of_this_image_only():
    image = ClusterImage()
    before = image.changes
    image.apply({b"topics\0x": b"of another section"})
    assert image.changes == before
    for value in (encode_row(ShardRow(7, 5, 4)), b"\xc1", None):
        image.apply({shard_key(1): value})
        assert image.changes > before
        before = image.changes
