"""A client that is bound to a namespace sees and reaches nothing outside of it, by any API."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol.admin.groups import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.admin.topics import DeleteTopicsRequest
from kafka.protocol.consumer.group import OffsetFetchRequest

from gateway.groups.classic.subscription import parse_assignment
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import supported_versions
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from gateway.protocol.wire.messages import uuid_of
from gateway.security.acls import AclResource
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.groups.group_requests import joined, subscription, sync_request
from tests.gateway.handlers.handler_calls import call, decode_response, start_call
from tests.gateway.security.requests_by_api import error_codes, request_of

SALES, RIVAL = "acme/sales", "rival/shop"
APP = "User:app"

#: Parts of all names that a client of SALES must not see, its own full names included.
HIDDEN = (b"acme", b"rival", b"treasure", b"hoard", b"vault", b"keepers", b"persistent", b"\0acme")

VERSIONS = [
    (key, version)
    for key, bounds in supported_versions().items()
    for version in sorted(set(bounds))
]

#: Requests that list everything, beside the plausible one.
LISTS: dict[ApiKey, list[dict[str, Any]]] = {
    ApiKey.METADATA: [{"topics": None}, {"topics": []}],
    ApiKey.DESCRIBE_LOG_DIRS: [{"topics": None}],
    ApiKey.LIST_CONFIG_RESOURCES: [{"resource_types": []}],
    ApiKey.LIST_GROUPS: [{"states_filter": [], "types_filter": []}],
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: [{"topics": [], "cursor": None}],
    ApiKey.LIST_PARTITION_REASSIGNMENTS: [{"topics": None}],
    ApiKey.ELECT_LEADERS: [{"topic_partitions": None}],
    ApiKey.DESCRIBE_CONFIGS: [{"resource_type": 32, "resource_name": "readers"}],
    ApiKey.ALTER_CONFIGS: [{"resource_type": 32, "resource_name": "readers"}],
}

CONFIG = {"consumer.session.timeout.ms": "50000"}

#: Fields for names of topics.
TOPIC_FIELDS = ("name", "topic", "topic_name", "resource_name")
TOPIC_LISTS = ("topic_names", "subscribed_topic_names")
#: Fields for ids of groups.
GROUP_FIELDS = ("group_id", "key")
GROUP_LISTS = ("coordinator_keys", "group_ids", "groups_names", "groups")


def environment(**settings: Any) -> BrokerEnvironment:
    """Topics and groups of two tenants, and of clients without one."""
    env = open_environment(group_consumer_assignment_interval_ms=0, **settings)
    env.store.has_namespaces = True
    for name, group in (
        (f"{SALES}/orders", f"\0{SALES}\0readers"),
        (f"{RIVAL}/orders", f"\0{RIVAL}\0readers"),
        (f"{RIVAL}/treasure", f"\0{RIVAL}\0hoard"),
        ("vault", "keepers"),
    ):
        env.topic(name)
        offset = CommittedOffset(len(name), 0, "", 0)
        ended(env.broker.offsets.commit(group, {(name, 0): offset}, None))
        ended(env.broker.group_configs.alter(group, lambda _: CONFIG, validate_only=False))
    env.topic("__kopgate_traffic")
    env.broker.topics.add_internal("__consumer_offsets")
    return env


def body_of(env: BrokerEnvironment, api: ApiKey, version: int, /, **values: Any) -> bytes:
    request = request_of(api, version, **values)
    waiting = start_call(env, request, version)
    # Longer than a rebalance and a long poll.
    env.clock.advance(3600)
    body: bytes = waiting.result
    assert not env.bugs
    return body


def id_of(env: BrokerEnvironment, name: str) -> uuid.UUID:
    return uuid_of(env.broker.topics.require(name).topic.topic_id)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"super_users": APP},
        {"authorizer": "acls", "super_users": APP},
        {"authorizer": "acls", "allow_everyone_if_no_acl_found": True},
        {"authorizer": "acls"},
    ],
    ids=["everyone", "super user", "super user with acls", "no acls", "refused"],
)
@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_reply_contains_no_name_from_outside(
    key: ApiKey, version: int, settings: dict[str, Any]
) -> None:
    for values in ({}, *LISTS.get(key, ())):
        env = environment(**settings)
        if key not in (ApiKey.METADATA, ApiKey.DELETE_TOPICS):
            values = {"topic_id": id_of(env, f"{SALES}/orders"), **values}
        body = body_of(env.bound_to(SALES), key, version, **values)
        assert [word for word in HIDDEN if word in body] == []


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_large_reply_contains_no_name_from_outside(
    key: ApiKey, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is encoded on another thread."""
    monkeypatch.setattr("gateway.protocol.large_requests.SLICE_ROWS", -1)
    monkeypatch.setattr("gateway.handlers.fetch.SLICE_ROWS", -1)
    for values in ({}, *LISTS.get(key, ())):
        env = environment()
        if key not in (ApiKey.METADATA, ApiKey.DELETE_TOPICS):
            values = {"topic_id": id_of(env, f"{SALES}/orders"), **values}
        body = body_of(env.bound_to(SALES), key, version, **values)
        assert [word for word in HIDDEN if word in body] == []


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_foreign_topic_is_answered_like_a_missing_one(key: ApiKey, version: int) -> None:
    replies = set()
    for name in (f"{RIVAL}/treasure", f"{RIVAL}/trinkets", "other/shop/treasure"):
        env = environment()
        named: dict[str, Any] = dict.fromkeys(TOPIC_FIELDS, name)
        named |= {field: [name] for field in TOPIC_LISTS}
        if key not in (ApiKey.METADATA, ApiKey.DELETE_TOPICS):
            exists = name == f"{RIVAL}/treasure"
            topic_id = id_of(env, name) if exists else uuid.UUID(int=len(name))
            named["topic_id"] = topic_id
        else:
            topic_id = uuid.UUID(int=1)
        before = sorted(live.name for live in env.broker.topics)
        body = body_of(env.bound_to(SALES), key, version, **named)
        assert sorted(live.name for live in env.broker.topics) == before
        replies.add(body.replace(name.encode(), b"?" * 19).replace(topic_id.bytes, b"!" * 16))
    lengths = {len(name) for name in (f"{RIVAL}/treasure", f"{RIVAL}/trinkets")}
    assert lengths == {19}
    assert len(replies) == 1


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.DELETE_TOPICS])
def test_foreign_topic_id_is_answered_like_a_missing_one(key: ApiKey) -> None:
    version = supported_versions()[key][1]
    replies = set()
    for topic_id in (None, uuid.UUID(int=7)):
        env = environment()
        asked = topic_id or id_of(env, f"{RIVAL}/treasure")
        body = body_of(env.bound_to(SALES), key, version, topic_id=asked, name=None)
        replies.add(body.replace(asked.bytes, b"?" * 16))
    assert len(replies) == 1


def with_groups(group_id: str) -> dict[str, Any]:
    return dict.fromkeys(GROUP_FIELDS, group_id) | {field: [group_id] for field in GROUP_LISTS}


NAMES_GROUPS = {
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_DELETE,
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.DELETE_GROUPS,
}


@pytest.mark.parametrize("namespace", [None, SALES])
@pytest.mark.parametrize(
    ("key", "version"), [(key, version) for key, version in VERSIONS if key in NAMES_GROUPS]
)
def test_group_id_of_a_tenant_is_accepted_from_no_client(
    key: ApiKey, version: int, namespace: str | None
) -> None:
    env = environment()
    groups = sorted(env.broker.offsets.groups())
    caller = env if namespace is None else env.bound_to(namespace)
    group_id = f"\0{RIVAL}\0hoard"
    values = with_groups(group_id)
    if key is ApiKey.OFFSET_COMMIT:
        values |= {"name": "vault" if namespace is None else "orders"}
    request = request_of(key, version, **values)
    reply = decode_response(request, body_of(caller, key, version, **values), version)
    assert error_codes(reply) - {0} == {ErrorCode.INVALID_GROUP_ID}
    assert sorted(env.broker.offsets.groups()) == groups
    assert list(env.broker.groups) == []


def test_listed_groups_are_those_of_the_namespace() -> None:
    env = environment()
    request = ListGroupsRequest(states_filter=[], types_filter=[])
    listed = {
        namespace: [
            row.group_id
            for row in call(
                env if namespace is None else env.bound_to(namespace), request, 5
            ).groups
        ]
        for namespace in (None, SALES, RIVAL, "public/default")
    }
    assert listed == {
        None: ["keepers"],
        SALES: ["readers"],
        RIVAL: ["readers", "hoard"],
        "public/default": [],
    }


def topics(env: BrokerEnvironment, *names: str) -> list[tuple[str, int]]:
    """Name and error code; all topics without names."""
    values: dict[str, Any] = {"topics": None}
    if names:
        kind = request_of(ApiKey.METADATA, 9).topics[0]
        values = {"topics": [type(kind)(name=name) for name in names]}
    reply = call(env, request_of(ApiKey.METADATA, 9, **values), 9)
    return sorted((row.name, row.error_code) for row in reply.topics)


def test_listed_topics_are_those_of_the_namespace() -> None:
    env = environment()
    assert topics(env.bound_to(SALES)) == [("orders", 0)]
    assert topics(env.bound_to(RIVAL)) == [("orders", 0), ("treasure", 0)]
    default = env.bound_to("public/default")
    assert topics(default) == [("__consumer_offsets", 0), ("vault", 0)]
    # It names the topics and groups of all tenants.
    assert topics(default, "__kopgate_traffic") == [
        ("__kopgate_traffic", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    ]
    # The cached replies are those of each client.
    assert topics(env.bound_to(SALES)) == [("orders", 0)]
    assert len(topics(env)) == 6


def test_topic_is_returned_by_the_name_that_was_sent() -> None:
    env = environment().bound_to(SALES)
    names = ["orders", "acme/sales/orders", "persistent://acme/sales/orders"]
    assert topics(env, *names) == sorted((name, 0) for name in names)
    assert topics(env, "rival/shop/orders", "vault") == [
        ("rival/shop/orders", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("vault", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_created_topic_is_in_the_namespace() -> None:
    env = environment()
    values = {"name": "new", "num_partitions": 1, "assignments": [], "configs": []}
    for namespace in (SALES, RIVAL):
        bound = env.bound_to(namespace)
        assert error_codes(call(bound, request_of(ApiKey.CREATE_TOPICS, 7, **values), 7)) == {0}
        reply = call(bound, request_of(ApiKey.CREATE_TOPICS, 7, **values), 7)
        assert [(row.name, row.error_code, row.error_message) for row in reply.topics] == [
            ("new", ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'new' already exists.")
        ]
    assert {live.name for live in env.broker.topics} >= {
        "persistent://acme/sales/new",
        "persistent://rival/shop/new",
    }
    assert ("new", 0) not in topics(env)


def committed(env: BrokerEnvironment, group: str, topic: str = "orders") -> int:
    asked = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    reply = call(env, OffsetFetchRequest(group_id=group, topics=[asked]), 5)
    return int(reply.topics[0].partitions[0].committed_offset)


def test_tenants_with_the_same_names_are_independent() -> None:
    env = environment()
    sales, rival = env.bound_to(SALES), env.bound_to(RIVAL)
    assert error_codes(call(sales, request_of(ApiKey.PRODUCE, 9), 9)) == {0}
    ends = []
    for bound in (sales, rival):
        request = request_of(ApiKey.LIST_OFFSETS, 5, timestamp=-1)
        (topic,) = call(bound, request, 5).topics
        ends.append((topic.name, topic.partitions[0].offset))
    assert ends == [("orders", 1), ("orders", 0)]
    commit = request_of(ApiKey.OFFSET_COMMIT, 8, committed_offset=1, member_id="",
                        generation_id_or_member_epoch=-1, group_instance_id=None)  # fmt: skip
    assert error_codes(call(sales, commit, 8)) == {0}
    assert (committed(sales, "readers"), committed(rival, "readers")) == (1, 17)
    assert committed(env, "readers", f"{SALES}/orders") == -1
    delete = DeleteTopicsRequest(topics=[], topic_names=["orders"], timeout_ms=0)
    assert error_codes(call(sales, delete, 5)) == {0}
    assert topics(sales) == []
    assert topics(rival, "orders") == [("orders", 0)]
    assert (committed(sales, "readers"), committed(rival, "readers")) == (-1, 17)
    assert call(sales, request_of(ApiKey.DELETE_GROUPS, 2), 2).results[0].error_code == (
        ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert error_codes(call(rival, request_of(ApiKey.DELETE_GROUPS, 2), 2)) == {0}
    assert committed(rival, "readers") == -1


def heartbeat(env: BrokerEnvironment, member_id: str, **fields: Any) -> Any:
    values: dict[str, Any] = {
        "group_id": "mixed",
        "member_id": member_id,
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    return call(env, ConsumerGroupHeartbeatRequest(**values | fields), 1)


def assigned(env: BrokerEnvironment, reply: Any) -> set[str]:
    return {
        env.broker.topics.require(row.topic_id.bytes).name
        for row in reply.assignment.topic_partitions
    }


def test_regular_expression_matches_short_names_of_the_namespace() -> None:
    env = environment()
    found = {}
    for namespace, regex in ((SALES, ".*"), (RIVAL, ".*"), (RIVAL, "trea.*"), (RIVAL, "rival.*")):
        reply = heartbeat(
            env.bound_to(namespace), "m", group_id=regex, subscribed_topic_regex=regex
        )
        found[namespace, regex] = assigned(env, reply)
    rival = {"persistent://rival/shop/orders", "persistent://rival/shop/treasure"}
    assert found == {
        (SALES, ".*"): {"persistent://acme/sales/orders"},
        (RIVAL, ".*"): rival,
        (RIVAL, "trea.*"): {"persistent://rival/shop/treasure"},
        (RIVAL, "rival.*"): set(),
    }


def parsed(raw: bytes) -> Any:
    return parse_assignment(bytes(raw))[0]


def test_group_keeps_short_names_of_classic_members_when_it_changes_its_protocol() -> None:
    """They are in bytes, which are not translated with the message."""
    env = environment().bound_to(SALES)
    heartbeat(env, "m", subscribed_topic_names=["missing"])
    names = ("orders", "acme/sales/other", "rival/shop/treasure", "vault")
    member = joined(env, group="mixed", metadata=subscription(*names))
    heartbeat(env, "m", member_epoch=-1, topic_partitions=None, rebalance_timeout_ms=-1)
    group = env.broker.groups.get(f"\0{SALES}\0mixed")
    assert group is not None
    assert group.kind == "classic"
    (left,) = group.roster
    assert parsed(left.assignment) == {"orders": frozenset({0})}
    assert env.broker.groups.subscribed_topics(group.group_id) == {
        "persistent://acme/sales/orders",
        "acme/sales/other",
        "\0rival/shop/treasure",
        "persistent://acme/sales/vault",
    }
    heartbeat(env, "n", subscribed_topic_names=["orders", "acme/sales/orders"])
    request = ConsumerGroupDescribeRequest(group_ids=["mixed"], include_authorized_operations=True)
    (row,) = call(env, request, 1).groups
    assert (row.error_code, row.group_id) == (0, "mixed")
    members = {one.member_id: one for one in row.members}
    assert members["n"].subscribed_topic_names == ["acme/sales/orders", "orders"]
    assert sorted(members[member.member_id].subscribed_topic_names) == sorted(names)
    assert [
        topic.topic_name for topic in members[member.member_id].assignment.topic_partitions
    ] == ["orders"]


def test_sync_of_classic_member_returns_the_names_of_its_subscription() -> None:
    env = environment().bound_to(SALES)
    heartbeat(env, "m", subscribed_topic_names=["missing"])
    member = joined(env, group="mixed", metadata=subscription("acme/sales/orders", "vault"))
    synced = call(env, sync_request(member.member_id, member.generation_id, group_id="mixed"), 5)
    assert synced.error_code == 0
    assert parsed(synced.assignment) == {"acme/sales/orders": frozenset({0})}


def test_offsets_of_subscribed_topics_are_kept() -> None:
    env = environment(offsets_retention_minutes=1).bound_to(SALES)
    joined(env, group="readers")
    subscribed = env.broker.groups.subscribed_topics(f"\0{SALES}\0readers")
    assert subscribed == {"persistent://acme/sales/orders"}


def test_description_of_classic_group_has_short_names() -> None:
    env = environment().bound_to(SALES)
    joined(env, group="readers")
    request = DescribeGroupsRequest(groups=["readers"], include_authorized_operations=True)
    (row,) = call(env, request, 5).groups
    assert (row.error_code, row.group_id, len(row.members)) == (0, "readers", 1)


def test_fetch_session_of_another_namespace_is_unknown() -> None:
    env = environment()
    request = request_of(ApiKey.FETCH, 11, session_epoch=0, max_bytes=1 << 20)
    opened = call(env.bound_to(RIVAL), request, 11)
    assert opened.session_id
    more = request_of(ApiKey.FETCH, 11, session_epoch=1, session_id=opened.session_id, topics=[],
                      forgotten_topics_data=[])  # fmt: skip
    refused = call(env.bound_to(SALES), more, 11)
    assert (refused.error_code, refused.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    final = request_of(ApiKey.FETCH, 11, session_epoch=-1, session_id=opened.session_id, topics=[],
                       forgotten_topics_data=[])  # fmt: skip
    call(env.bound_to(SALES), final, 11)
    assert call(env.bound_to(RIVAL), more, 11).error_code == 0


def test_commit_is_reported_to_the_store_by_the_plain_group_id() -> None:
    env = environment()
    assert ("readers", f"persistent://{SALES}/orders", 0) in {
        key[:3] for key in env.store.committed
    }
    assert all("\0" not in key[0] for key in env.store.committed)


def test_groups_and_offsets_of_tenants_survive_a_restart() -> None:
    env = environment()
    sales = env.bound_to(SALES)
    heartbeat(sales, "m", subscribed_topic_regex="ord.*")
    joined(env.bound_to(RIVAL), group="mixed")
    ended(env.store.close())
    again = open_environment(env.store.medium, group_consumer_assignment_interval_ms=0)
    again.store.has_namespaces = True
    assert committed(again.bound_to(SALES), "readers") == committed(sales, "readers")
    group = again.broker.groups.get(f"\0{SALES}\0mixed")
    assert group is not None
    assert group.subscribed_topics == {"persistent://acme/sales/orders"}


def test_refusals_name_groups_and_topics_readably(monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(authorizer="acls")
    rows: list[tuple[Any, ...]] = []
    monkeypatch.setattr(type(env.broker.audit), "refused", lambda _, *row: rows.append(row))
    bound = env.bound_to(SALES)
    call(bound, request_of(ApiKey.DELETE_GROUPS, 2), 2)
    call(bound, request_of(ApiKey.LIST_OFFSETS, 5), 5)
    call(bound, request_of(ApiKey.LIST_OFFSETS, 5, name=f"{RIVAL}/treasure"), 5)
    assert [row[5] for row in rows] == [
        f"{AclResource.GROUP.name}:acme/sales/readers",
        f"{AclResource.TOPIC.name}:persistent://acme/sales/orders",
        f"{AclResource.TOPIC.name}:rival/shop/treasure",
    ]
