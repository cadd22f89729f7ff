"""Descriptions of consumer groups; those of classic groups are tested in `test_groups.py`."""

from __future__ import annotations

import pytest

from gateway.cli.groups import group_rendering
from gateway.cli.groups.group_descriptions import find_groups
from gateway.cli.groups.lag import partition_lags
from tests.fakes.admin_client import Groups, consumer


@pytest.fixture
def server():
    server = Groups()
    server.topic("t", (0, 10), (5, 20))
    server.consumer_group(
        "c",
        consumer("x", {"t": [0, 1]}, {"t": [0]}, epoch=6),
        consumer("y", {}, {"t": [1]}),
        state="Reconciling",
    )
    return server


def group_and_positions(server):
    found, _ = find_groups(server, ["c"])
    return found[0], partition_lags(server, found)["c"]


def test_target_assignment_is_shown_beside_current_one(server):
    assert group_rendering.as_text(*group_and_positions(server), with_members=True) == (
        "c: Reconciling, 2 members, consumer protocol, uniform, coordinator 1\n"
        "  TOPIC  PARTITION  COMMITTED  END  LAG  MEMBER  CLIENT  HOST\n"
        "  t      0          -          10   -    x-1     x       /10.0.0.1\n"
        "  t      1          -          20   -    x-1     x       /10.0.0.1\n"
        "  total lag 0 in no partitions; unknown for 2 more\n"
        "  MEMBER  INSTANCE  CLIENT  HOST       PARTITIONS  TARGET  EPOCH\n"
        "  x-1     -         x       /10.0.0.1  t:0,1       t:0     6\n"
        "  y-1     -         y       /10.0.0.1  -           t:1     7"
    )


def test_json_has_epochs_and_targets(server):
    said = group_rendering.as_json(*group_and_positions(server))
    assert (said["type"], said["state"], said["assignor"], said["epoch"]) == (
        "consumer",
        "Reconciling",
        "uniform",
        7,
    )
    assert [(one["member"], one["epoch"], one["target"]) for one in said["members"]] == [
        ("x-1", 6, [{"topic": "t", "partition": 0}]),
        ("y-1", 7, [{"topic": "t", "partition": 1}]),
    ]
