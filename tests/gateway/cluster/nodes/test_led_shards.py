"""A gateway that leads only some shards: requests refused, held and served; closing of shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer.group import OffsetFetchRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.metadata.metadata import MetadataRequest
from twisted.internet.defer import Deferred

from gateway.compaction import LogCleaner
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.housekeeping import Housekeeping
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.wire.api_keys import ApiKey
from storage.shards import name_shard
from tests.fakes.broker import NOW, BrokerEnvironment, Started, ended, open_environment
from tests.gateway.handlers.admin.test_delete_records import delete
from tests.gateway.handlers.admin.test_describe_cluster import log_dirs, producers, sizes
from tests.gateway.handlers.fetch_requests import from_offset, request, rows, start_fetch
from tests.gateway.handlers.groups.group_requests import join_request, stable
from tests.gateway.handlers.groups.test_offset_commit import commit, commit_request, groups_of
from tests.gateway.handlers.handler_calls import call, decode_response, start_call
from tests.gateway.handlers.test_list_offsets import epochs, list_offsets
from tests.gateway.handlers.test_produce import produce
from tests.gateway.handlers.test_produce import request as produce_request
from tests.gateway.handlers.test_produce import start as start_produce
from tests.gateway.test_broker import ASKED, values
from tests.gateway.test_broker import request as group_request
from tests.records.record_sets import batch

NOT_LEADER, NOT_COORDINATOR = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR
SHARDS = 4
#: Partition of `orders` whose shard the tests close. The shards of other partitions stay open.
GONE = 1

#: Group APIs with a group in the request.
NAMED = [asked for asked in ASKED if asked[0] != ApiKey.LIST_GROUPS]


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment(shard_count=SHARDS)
    env.topic("orders", SHARDS)
    ended(env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(5, -1, "", NOW)}))
    return env


def shard_of(env: BrokerEnvironment, index: int = GONE) -> int:
    return env.broker.topics.opener.shard_of(env.broker.topics.require("orders"), index)


def resign(env: BrokerEnvironment, *shards: int) -> None:
    for shard in shards:
        env.broker.leadership.resign(shard)


def lead(env: BrokerEnvironment, *shards: int) -> None:
    for shard in shards:
        env.broker.leadership.lead(shard, env.broker.leadership.epoch_of(shard) + 1)


def groups_in(shard: int, count: int = 1) -> list[str]:
    names = (f"group-{number}" for number in range(1000))
    return [name for name in names if name_shard(name, SHARDS) == shard][:count]


def all_offsets(group_id: str) -> Any:
    """A request row for all offsets of a group."""
    kind = OffsetFetchRequest.OffsetFetchRequestGroup
    return kind(group_id=group_id, member_id=None, member_epoch=-1, topics=None)


# Groups


@pytest.mark.parametrize(("key", "version"), NAMED)
def test_group_requests_are_refused_unless_their_shard_is_led(env, key, version):
    body = group_request(env, key, version, stable(env))
    resign(env, *range(SHARDS))
    reply = decode_response(body, start_call(env, body, version).result, version).to_dict()
    assert {*values(reply, "error_code")} - {0} == {NOT_COORDINATOR}
    assert {*values(reply, "committed_offset")} <= {-1}


@pytest.mark.parametrize(("key", "version"), ASKED)
def test_group_requests_are_held_while_their_shard_opens(env, key, version):
    body = group_request(env, key, version, stable(env))
    resign(env, *range(SHARDS))
    env.store.slow_shards = slow = Deferred()
    lead(env, *range(SHARDS))
    asking = start_call(env, body, version)
    assert not asking.is_done
    env.store.slow_shards = None
    slow.callback(None)
    env.clock.advance(5)
    reply = decode_response(body, asking.result, version).to_dict()
    assert NOT_COORDINATOR not in values(reply, "error_code")


def test_held_group_request_is_refused_after_timeout(env):
    resign(env, *range(SHARDS))
    env.store.slow_shards = Deferred()
    lead(env, *range(SHARDS))
    body = DescribeGroupsRequest(groups=[f"group-{number}" for number in range(20)])
    asking = start_call(env, body, 5)
    env.clock.advance(env.broker.settings.offsets_commit_timeout_ms / 1000)
    reply = decode_response(body, asking.result, 5)
    assert [row.error_code for row in reply.groups] == [NOT_COORDINATOR] * 20


def test_requests_with_several_groups_refuse_only_those_of_other_gateways(env):
    gone, here = groups_in(0)[0], groups_in(1)[0]
    for group_id in (gone, here):
        assert commit(env, ("orders", 0, 7), group=group_id) == [0]
    resign(env, 0)
    described = call(env, DescribeGroupsRequest(groups=[gone, here]), 5).groups
    assert [row.error_code for row in described] == [NOT_COORDINATOR, 0]
    fetched = groups_of(env, *map(all_offsets, (gone, here)))
    assert fetched == [(gone, NOT_COORDINATOR, []), (here, 0, [("orders", 7)])]
    deleted = call(env, DeleteGroupsRequest(groups_names=[gone, here]), 2).results
    assert [row.error_code for row in deleted] == [NOT_COORDINATOR, 0]


def test_groups_of_led_shards_are_listed(env):
    gone, here = groups_in(0)[0], groups_in(1)[0]
    for group_id in (gone, here):
        commit(env, ("orders", 0, 7), group=group_id)
    resign(env, 0)
    listed = {row.group_id for row in call(env, ListGroupsRequest(), 5).groups}
    assert listed & {gone, here} == {here}


def test_waiting_members_of_closed_shard_are_refused(env):
    told = decode_response(join_request(), start_call(env, join_request(), 9).result, 9)
    body = join_request(told.member_id)
    waiting = start_call(env, body, 9)
    assert not waiting.is_done
    resign(env, name_shard("g", SHARDS))
    assert decode_response(body, waiting.result, 9).error_code == NOT_COORDINATOR
    assert env.broker.groups.get("g") is None
    assert env.bugs == []


def test_closing_shard_restores_memory_and_timers(env):
    shard = name_shard("g", SHARDS)
    timers = len(env.broker.groups._timers._scheduled)
    before = env.broker.groups._bytes
    stable(env)
    assert env.broker.groups._bytes > before
    held = env.broker.offsets._bytes
    resign(env, shard)
    assert (env.broker.groups._bytes, len(env.broker.groups._timers._scheduled)) == (before, timers)
    assert (env.broker.offsets._bytes, len(env.broker.offsets)) == (0, 0)
    lead(env, shard)
    assert env.broker.offsets._bytes == held
    assert env.broker.offsets.get("g", "orders", 0).offset == 5
    assert env.broker.groups.get("g") is not None


def test_commit_in_flight_ends_and_is_found_by_next_leader(env):
    shard = name_shard("g", SHARDS)
    env.store.hold()
    body = commit_request(env, ("orders", 0, 9), version=9)
    committing = start_call(env, body, 9)
    resign(env, shard)
    assert not committing.is_done
    env.store.release()
    assert {*values(decode_response(body, committing.result, 9).to_dict(), "error_code")} == {0}
    assert env.broker.offsets._bytes == 0
    lead(env, shard)
    assert env.broker.offsets.get("g", "orders", 0).offset == 9


def test_offsets_read_across_a_handover_are_not_returned(env):
    shard = name_shard("g", SHARDS)
    epoch = ended(env.broker.confirm_coordinator("g"))
    env.broker.check_coordinator("g", epoch)
    resign(env, shard)
    lead(env, shard)
    with pytest.raises(KafkaError) as refused:
        env.broker.check_coordinator("g", epoch)
    assert refused.value.code is NOT_COORDINATOR


# Partitions

#: The error code of partition `index` in each API.
ASK: dict[str, Callable[[BrokerEnvironment, int], int]] = {
    "produce": lambda env, index: produce(env, 11, (index, batch(1)))[0].error_code,
    "fetch": lambda env, index: (
        rows(start_fetch(env, request(12, [from_offset(0, index)])).result)[
            "orders", index
        ].error_code
    ),
    "list offsets": lambda env, index: list_offsets(env, ("orders", index, -1))[0].error_code,
    "old list offsets": lambda env, index: (
        list_offsets(env, ("orders", index, -1), version=0)[0].error_code
    ),
    "epoch": lambda env, index: epochs(env, ("orders", index, 0))[0][0],
    "delete records": lambda env, index: delete(env, ("orders", {index: 0}))["orders", index][1],
    "producers": lambda env, index: producers(env, {"orders": [index]})["orders", index].error_code,
}


@pytest.mark.parametrize("api", ASK)
def test_partition_requests_are_refused_unless_their_shard_is_led(env, api):
    assert ASK[api](env, GONE) == 0
    resign(env, shard_of(env))
    assert [ASK[api](env, index) for index in (0, GONE)] == [0, NOT_LEADER]
    lead(env, shard_of(env))
    assert ASK[api](env, GONE) == 0
    assert env.bugs == []


def test_request_for_partition_is_held_while_its_shard_opens(env):
    resign(env, shard_of(env))
    env.store.slow_shards = slow = Deferred()
    lead(env, shard_of(env))
    opening = Started(env.broker.topics.partition("orders", GONE))
    assert not opening.is_done
    env.store.slow_shards = None
    slow.callback(None)
    assert opening.result.log.leader_epoch == 1


def test_request_for_partition_is_refused_if_its_shard_does_not_open_in_time(env):
    resign(env, shard_of(env))
    env.store.slow_shards = Deferred()
    lead(env, shard_of(env))
    opening = Started(env.broker.topics.partition("orders", GONE))
    env.clock.advance(env.broker.settings.partition_open_timeout_ms / 1000)
    assert opening.failure.code is NOT_LEADER


def test_partition_that_opens_when_its_shard_closes_is_refused_at_once(env):
    env.store.slow_logs = slow = Deferred()
    opening = Started(env.broker.topics.partition("orders", GONE))
    resign(env, shard_of(env))
    assert opening.failure.code is NOT_LEADER
    lead(env, shard_of(env))
    env.store.slow_logs = None
    slow.callback(None)
    assert env.partition(index=GONE).log.leader_epoch == 1


def test_requests_for_partitions_that_open_are_refused_when_the_gateway_is_cut_off(env):
    env.store.slow_logs = slow = Deferred()
    opening = Started(env.broker.topics.partition("orders", GONE))
    env.broker.topics.refuse_openings()
    assert opening.failure.code is NOT_LEADER
    env.store.slow_logs = None
    slow.callback(None)
    assert env.partition(index=GONE).log.leader_epoch == 0
    assert env.bugs == []


def test_long_poll_on_closed_shard_is_answered_at_once(env):
    # Appends of the shard are in flight, so that the store does not close it yet.
    env.partition(index=0)
    waiting = start_fetch(
        env, request(12, [from_offset(0, index) for index in (0, GONE)], max_wait_ms=30_000)
    )
    env.store.hold()
    assert not waiting.is_done
    resign(env, shard_of(env))
    found = {index: row.error_code for (_, index), row in rows(waiting.result).items()}
    assert found == {0: 0, GONE: NOT_LEADER}
    env.store.release()


def test_append_in_flight_is_stored_before_shard_closes(env):
    env.partition(index=GONE)
    env.store.hold()
    producing = start_produce(env, produce_request(11, (GONE, batch(3))))
    resign(env, shard_of(env))
    assert not producing.is_done
    env.store.release()
    ((_, (row,)),) = producing.result.topics
    assert (row.error_code, row.base_offset) == (0, 0)
    lead(env, shard_of(env))
    assert env.partition(index=GONE).log.end_offset == 3


def test_producer_state_is_saved_when_shard_closes(env):
    produce(env, 11, (GONE, batch(1, producer=(7, 0, 0))))
    resign(env, shard_of(env))
    lead(env, shard_of(env))
    again = env.partition(index=GONE)
    assert again.recovery is None
    assert again.unsaved_bytes == 0
    assert produce(env, 11, (GONE, batch(1, producer=(7, 0, 0))))[0].base_offset == 0


def test_log_dirs_and_periodic_jobs_skip_partitions_of_other_gateways(env, caplog):
    resign(env, shard_of(env))
    env.broker.cluster.set_leader(shard_of(env), 2, 1)
    assert set(sizes(log_dirs(env, None))) == {("orders", index) for index in (0, 2, 3)}
    ended(Housekeeping(env.broker, env.background)._retain_all())
    assert sorted(env.broker.topics.require("orders").partitions) == [0, 2, 3]
    env.topic("compacted", SHARDS, cleanup_policy="compact")
    ended(LogCleaner(env.broker).run_once())
    assert sorted(env.broker.topics.require("compacted").partitions) == sorted(
        index
        for index in range(SHARDS)
        if env.broker.topics.opener.can_open(env.broker.topics.require("compacted"), index)
    )
    assert caplog.text == ""


# What clients see of other gateways


def test_metadata_and_coordinators_name_the_leader_of_each_shard(env):
    cluster = env.broker.cluster
    cluster.set_nodes(
        {0: {"PLAINTEXT": ("127.0.0.1", 9092)}, 2: {"PLAINTEXT": ("127.0.0.1", 9093)}}
    )
    cluster.set_leader(shard_of(env), 2, 5)
    cluster.set_leader(shard_of(env, 2), -1, 6)
    (topic,) = call(env, MetadataRequest(topics=None), 9).topics
    leaders = {
        row.partition_index: (row.error_code, row.leader_id, row.leader_epoch)
        for row in topic.partitions
    }
    found = [leaders[index] for index in range(SHARDS)]
    assert found == [(0, 0, 0), (0, 2, 5), (ErrorCode.LEADER_NOT_AVAILABLE, -1, 6), (0, 0, 0)]
    keys = [groups_in(shard_of(env, index))[0] for index in range(SHARDS)]
    body = FindCoordinatorRequest(key_type=0, coordinator_keys=keys)
    coordinators: Any = call(env, body, 4).coordinators
    assert [(row.error_code, row.node_id, row.port) for row in coordinators] == [
        (0, 0, 9092),
        (0, 2, 9093),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1),
        (0, 0, 9092),
    ]
