"""A follower returns the controller's reply, and each request is executed at most once."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
from kafka.protocol.admin import (
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from auth.mechanism import Principal
from gateway.cluster import forwarding as module
from gateway.cluster.calls import MAX_PAYLOAD_BYTES, CallFailed, CallUnanswered
from gateway.cluster.forwarding import MAX_REQUEST_BYTES, ForwardedRequest
from gateway.coroutines import TimeSlices
from gateway.protocol import forwarded
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.routes import ROUTES
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION
from gateway.security.acls import AclBinding, AclOperation, AclPattern, AclPermission, AclResource
from gateway.security.authorizer import AclAuthorizer
from gateway.security.tenants import Tenants
from tests.fakes.broker import Started, ended
from tests.fakes.connection import PEER
from tests.gateway.cluster.gateway_pair import CONTROLLER, FOLLOWER, GatewayPair
from tests.gateway.handlers.handler_calls import decode_response
from tests.gateway.security.requests_by_api import error_codes, request_of

#: Values that replace those of `request_of`, so that the requests succeed.
VALUES: dict[ApiKey, dict[str, Any]] = {
    ApiKey.CREATE_TOPICS: {"name": "new", "assignments": [], "configs": []},
    ApiKey.DELETE_TOPICS: {"name": "orders", "topic_names": ["orders"]},
    ApiKey.CREATE_PARTITIONS: {"count": 3, "assignments": None},
    ApiKey.ALTER_CONFIGS: {"name": "retention.ms", "value": "1000"},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {"name": "retention.ms", "value": "1000"},
    ApiKey.DELETE_ACLS: {"resource_type_filter": 2, "permission_type": 3},
    ApiKey.ALTER_CLIENT_QUOTAS: {
        "entity_type": "user", "entity_name": "alice", "key": "producer_byte_rate", "value": 1024.0,
    },
}  # fmt: skip

FORWARDED = sorted(
    {
        (ApiKey(key), version)
        for (key, version), route in ROUTES.items()
        if route.refuse_items is not None
    }
)
LATEST = sorted(dict(FORWARDED).items())
#: Requests whose replies contain random ids, those of new topics.
RANDOM = {(ApiKey.CREATE_TOPICS, 7)}


def request_for(key: ApiKey, version: int, **values: Any) -> Any:
    return request_of(key, version, **{**VALUES.get(key, {}), **values})


def rule(operation: AclOperation, resource: AclResource, principal: str) -> AclBinding:
    name = "kafka-cluster" if resource is AclResource.CLUSTER else "orders"
    return AclBinding(
        resource, name, AclPattern.LITERAL, principal, "192.0.2.1", operation, AclPermission.ALLOW
    )


def make_pair(**settings: Any) -> GatewayPair:
    pair = GatewayPair(**settings)
    pair.controller.topic("orders")
    pair.replay()
    return pair


def decoded(message: Any, reply: bytes, version: int) -> Any:
    is_flexible = version >= FIRST_FLEXIBLE_VERSION[message.API_KEY]
    return decode_response(message, reply[1:] if is_flexible else reply, version)


def codes(message: Any, reply: bytes, version: int) -> set[int]:
    found = decoded(message, reply, version)
    if message.API_KEY == ApiKey.CREATE_TOPICS:
        # `error_codes` would include the error codes of configs.
        return {row.error_code for row in found.topics}
    return error_codes(found)


@pytest.mark.parametrize("authorizer", ["acls", "none"])
@pytest.mark.parametrize(("key", "version"), FORWARDED)
def test_follower_answers_as_the_controller(key: ApiKey, version: int, authorizer: str) -> None:
    replies = []
    for node_id in (FOLLOWER, CONTROLLER):
        pair = make_pair(authorizer=authorizer, super_users="User:ANONYMOUS")
        message = request_for(key, version)
        replies.append(pair.ask(pair.client(node_id), message, version))
        assert bool(pair.awaited) == (node_id == FOLLOWER)
        assert pair.follower.bugs == pair.controller.bugs == []
    ours, theirs = (decoded(message, reply, version).to_dict() for reply in replies)
    if (key, version) in RANDOM or (key is ApiKey.DELETE_TOPICS and version >= 6):
        assert len(replies[0]) == len(replies[1])
        assert without_ids(ours) == without_ids(theirs)
    else:
        assert replies[0] == replies[1]


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_ids(part) for name, part in value.items() if name != "topic_id"}
    return [without_ids(part) for part in value] if isinstance(value, list) else value


def test_these_apis_run_at_the_controller() -> None:
    assert {key for key, _ in FORWARDED} == {
        ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_QUORUM,
    }  # fmt: skip


def test_created_topic_is_visible_at_the_follower_before_the_reply() -> None:
    pair = make_pair()
    message = request_for(ApiKey.CREATE_TOPICS, 7)
    assert codes(message, pair.ask(pair.client(), message, 7), 7) == {0}
    assert pair.awaited == [7]
    assert pair.follower.broker.topics.require("new").topic == (
        pair.controller.broker.topics.require("new").topic
    )


def test_reply_about_many_topics_has_the_configs_of_the_first() -> None:
    pair = make_pair(max_topics=10_000)
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=f"new-{number}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        for number in range(4000)
    ]
    message = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=True, version=7)
    rows = decoded(message, pair.ask(pair.client(), message, 7), 7).topics
    assert {row.error_code for row in rows} == {0}
    counts = [len(row.configs) for row in rows]
    assert counts[0] > 10
    assert counts[-1] == 0
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(("key", "version"), LATEST)
def test_forwarded_request_is_authorized_as_its_client(key: ApiKey, version: int) -> None:
    pair = make_pair(authorizer="acls", super_users="User:admin")
    authorizer = pair.controller.broker.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    rights = [
        rule(operation, resource, "User:alice")
        for resource in (AclResource.CLUSTER, AclResource.TOPIC)
        for operation in (AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.CREATE,
                          AclOperation.DELETE, AclOperation.DESCRIBE)
    ]  # fmt: skip
    ended(authorizer.add(rights, TimeSlices(pair.clock)))
    for name, is_refused in (("bob", True), ("alice", False)):
        message = request_for(key, version)
        reply = pair.ask(pair.client(principal=Principal("User", name)), message, version)
        found = codes(message, reply, version)
        refusals = {
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }  # fmt: skip
        assert bool(found & refusals) is is_refused
    # The audit lines are written where the request is executed.
    assert pair.audits[FOLLOWER].lines == []
    assert (PEER, "PLAINTEXT", "User:bob") in pair.audits[CONTROLLER].lines


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_message_is_repeated_without_a_second_execution(lost: int) -> None:
    """The first CreateTopics of a client must not find its own topic."""
    pair = make_pair()
    sent = pair.inboxes.sent
    pair.inboxes.loses = lambda sender, target: len(sent) == lost
    pair.inboxes.copies = 2
    message = request_for(ApiKey.CREATE_TOPICS, 7)
    assert codes(message, pair.ask(pair.client(), message, 7, 5), 7) == {0}
    assert len(sent) > 2


@pytest.mark.parametrize(("key", "version"), FORWARDED)
def test_without_a_controller_each_item_fails_with_not_controller(
    key: ApiKey, version: int
) -> None:
    pair = make_pair()
    pair.controller_id = None
    message = request_for(key, version)
    reply = pair.ask(pair.client(), message, version, 30)
    assert codes(message, reply, version) == {ErrorCode.NOT_CONTROLLER}
    assert pair.inboxes.sent == []


@pytest.mark.parametrize(("key", "version"), FORWARDED)
def test_silent_controller_is_a_timeout_of_each_item(key: ApiKey, version: int) -> None:
    pair = make_pair()
    pair.inboxes.loses = lambda sender, target: True
    message = request_for(key, version)
    reply = pair.ask(pair.client(), message, version, 30)
    assert codes(message, reply, version) == {ErrorCode.REQUEST_TIMED_OUT}


def test_request_waits_for_an_elected_controller() -> None:
    pair = make_pair()
    pair.controller_id = None
    client, message = pair.client(), request_for(ApiKey.CREATE_TOPICS, 7)
    pair.clock.callLater(3, setattr, pair, "controller_id", CONTROLLER)
    assert codes(message, pair.ask(client, message, 7, 5), 7) == {0}


def test_request_timeout_of_the_client_limits_the_wait() -> None:
    pair = make_pair()
    pair.controller_id = None
    client, message = pair.client(), request_for(ApiKey.CREATE_TOPICS, 7, timeout_ms=2_000)
    assert codes(message, pair.ask(client, message, 7, 3), 7) == {ErrorCode.NOT_CONTROLLER}


def test_gateway_that_becomes_the_controller_executes_the_request() -> None:
    pair = make_pair()
    pair.controller_id = None
    client, message = pair.client(), request_for(ApiKey.CREATE_TOPICS, 7)
    pair.clock.callLater(3, setattr, pair, "controller_id", FOLLOWER)
    assert codes(message, pair.ask(client, message, 7, 5), 7) == {0}
    assert "new" in pair.follower.store.topics
    assert "new" not in pair.controller.store.topics


def test_gateway_that_is_no_longer_the_controller_executes_nothing() -> None:
    pair = make_pair()
    client, message = pair.client(), request_for(ApiKey.CREATE_TOPICS, 7, timeout_ms=2_000)
    pair.clock.callLater(0.005, setattr, pair, "controller_id", 3)
    pair.inboxes.loses = lambda sender, target: target == 3
    assert codes(message, pair.ask(client, message, 7, 5), 7) == {ErrorCode.REQUEST_TIMED_OUT}
    assert "new" not in pair.controller.store.topics


@pytest.mark.parametrize(("key", "version"), LATEST)
def test_too_large_request_is_refused(
    key: ApiKey, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarded, "MAX_REQUEST_BYTES", 10)
    pair = make_pair()
    message = request_for(key, version)
    reply = pair.ask(pair.client(), message, version)
    assert codes(message, reply, version) == {ErrorCode.POLICY_VIOLATION}
    assert pair.inboxes.sent == []


def test_largest_request_with_a_long_principal_fits_into_a_call() -> None:
    request = ForwardedRequest(
        1, PEER, "host", "LISTENER", "User", "x" * (64 << 10), "tenant", bytes(MAX_REQUEST_BYTES)
    )
    assert len(msgspec.msgpack.encode(request)) <= MAX_PAYLOAD_BYTES


def test_reply_is_sent_although_the_change_is_not_visible_yet() -> None:
    pair = make_pair()
    pair.is_replaying = False
    message = request_for(ApiKey.CREATE_TOPICS, 7)
    assert codes(message, pair.ask(pair.client(), message, 7, 10), 7) == {0}
    assert pair.follower.broker.topics.get("new") is None


@pytest.mark.parametrize(("broker_id", "code"), [("1", 0), ("2", 42), ("", 0)])
def test_configs_of_a_broker_are_altered_at_that_broker(broker_id: str, code: int) -> None:
    """Clients send the request to the broker with the id. The controller stores the change."""
    pair = make_pair()
    message = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=4,
                resource_name=broker_id,
                configs=[
                    IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig(
                        name="message.max.bytes", config_operation=0, value="2000"
                    )
                ],
            )
        ],
        validate_only=False,
    )
    reply = decoded(message, pair.ask(pair.client(), message, 1), 1)
    assert isinstance(reply, IncrementalAlterConfigsResponse)
    assert [row.error_code for row in reply.responses] == [code]
    settings = [one.broker.settings.message_max_bytes for one in (pair.follower, pair.controller)]
    assert [size == 2000 for size in settings] == [not code, broker_id == ""]


def test_topic_of_a_tenant_gets_its_name_in_the_namespace() -> None:
    pair = make_pair()
    tenants = Tenants("public/default", ["a/b"])
    for env in (pair.follower, pair.controller):
        env.store.has_namespaces = True
        object.__setattr__(env.broker, "tenants", tenants)
    client = pair.client(principal=Principal("User", "app", "a/b"), tenants=tenants)
    message = request_for(ApiKey.CREATE_TOPICS, 7)
    reply = decoded(message, pair.ask(client, message, 7), 7)
    assert [(row.name, row.error_code) for row in reply.topics] == [("new", 0)]
    assert "persistent://a/b/new" in pair.controller.store.topics


def test_errors_of_the_reply_are_counted_at_the_gateway_that_was_asked() -> None:
    pair = make_pair()
    counted: list[Any] = []
    client = pair.client()
    recorder: Any = client.dispatch._traffic
    client.dispatch._traffic = type(
        "Counting",
        (type(recorder),),
        {"request_answered": lambda _, request, reply, size: counted.append(reply.errors)},
    )()
    message = request_for(ApiKey.CREATE_TOPICS, 7, name="orders")
    pair.ask(client, message, 7)
    assert counted == [{ErrorCode.TOPIC_ALREADY_EXISTS: 1}]


def test_missing_topic_is_created_at_the_controller_once() -> None:
    pair = make_pair(num_partitions=3)
    asked = [Started(pair.follower.broker.topics.find_or_create("new")) for _ in range(3)]
    pair.run()
    found = pair.follower.broker.topics.require("new")
    assert all(one.result is found for one in asked)
    assert pair.controller.broker.topics.require("new").topic.partitions == 3
    assert pair.inboxes.sent == [(FOLLOWER, CONTROLLER), (CONTROLLER, FOLLOWER)]


def test_topic_that_exists_at_the_controller_is_found() -> None:
    pair = make_pair()
    pair.controller.topic("new", 5)
    asked = Started(pair.follower.broker.topics.find_or_create("new"))
    pair.run()
    assert asked.result.topic.partitions == 5


def test_error_of_creating_a_topic_is_that_of_the_controller() -> None:
    pair = make_pair()
    pair.controller.store.refuse_writes = True
    asked = Started(pair.follower.broker.topics.find_or_create("new"))
    pair.run()
    assert isinstance(asked.failure, KafkaError)
    assert asked.failure.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_created_topic_that_is_not_visible_yet_is_a_retriable_error() -> None:
    pair = make_pair()
    pair.is_replaying = False
    asked = Started(pair.follower.broker.topics.find_or_create("new"))
    pair.run()
    assert isinstance(asked.failure, KafkaError)
    assert asked.failure.code is ErrorCode.LEADER_NOT_AVAILABLE


def test_producer_ids_of_two_gateways_differ() -> None:
    pair = make_pair()
    asked = [
        Started(env.broker.producer_ids.next_id())
        for env in (pair.controller, pair.follower, pair.controller)
    ]
    pair.run()
    assert [one.result for one in asked] == [0, 1000, 1]


def test_producer_ids_are_asked_for_again_when_the_controller_cannot_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = make_pair()
    store = pair.controller.store
    store.refuse_writes = True
    asked = Started(pair.follower.broker.producer_ids.next_id())
    pair.run(2)
    assert not asked.is_done
    store.refuse_writes = False
    pair.run(2)
    assert asked.result == 0
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_producer_ids_are_asked_for_again_when_the_controller_is_lost() -> None:
    """A call may have been executed; librdkafka 1.0 never asks again after an error."""
    pair = make_pair()
    calls: Any = pair.calls[FOLLOWER]
    real, failures = calls.call, [CallUnanswered("its process has ended"), CallFailed("it failed")]

    async def call(*given: Any) -> bytes:
        if failures:
            raise failures.pop(0)
        answer: bytes = await real(*given)
        return answer

    calls.call = call
    asked = Started(pair.follower.broker.producer_ids.next_id())
    assert not asked.is_done
    pair.run()
    assert (asked.result, failures) == (0, [])


def test_topic_and_producer_ids_without_a_controller_are_retriable_errors() -> None:
    pair = make_pair()
    pair.controller_id = None
    broker = pair.follower.broker
    asked = [Started(broker.topics.find_or_create("new")), Started(broker.producer_ids.next_id())]
    pair.run(5)
    failures: list[Any] = [one.failure for one in asked]
    assert [one.code for one in failures] == [
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ]


def test_gateway_that_becomes_the_controller_creates_topics_and_producer_ids() -> None:
    pair = make_pair()
    pair.controller_id = None
    broker = pair.follower.broker
    asked = [Started(broker.topics.find_or_create("new", 3)) for _ in range(2)]
    producer_id = Started(broker.producer_ids.next_id())
    pair.clock.callLater(3, setattr, pair, "controller_id", FOLLOWER)
    pair.run(5)
    assert asked[0].result is asked[1].result is broker.topics.require("new")
    assert pair.follower.store.topics["new"].partitions == 3
    assert "new" not in pair.controller.store.topics
    assert producer_id.result == 0


def test_wait_for_the_replay_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    pair = make_pair()
    message = request_for(ApiKey.CREATE_TOPICS, 7)
    access: Any = pair.follower.broker.controller

    async def wait_forever(_: int) -> None:
        await module.sleep(pair.clock, 1000)

    access._wait_for = wait_forever
    assert codes(message, pair.ask(pair.client(), message, 7, 8), 7) == {0}
    assert "not visible yet" in caplog.text


def test_malformed_request_closes_the_connection() -> None:
    pair = make_pair()
    client = pair.client()
    frame = CreateTopicsRequest(topics=[], timeout_ms=0, validate_only=False)
    frame.with_header(1, "test")
    client.send(bytes(frame.encode(version=7, header=True))[:-3])
    assert client.is_aborted
    assert pair.inboxes.sent == []
