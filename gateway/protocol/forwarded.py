"""Requests that run at the controller: forwards them there, and executes forwarded ones.

The controller decodes, authorizes, executes and audits a forwarded request as if its client were
connected to it. The gateway that received the request writes the traffic log and applies quotas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import error
from typing import Any

import msgspec

from auth.mechanism import AuthenticationFailed, Principal
from gateway.broker import Broker
from gateway.cluster.calls import CallFailed, CallRefused, Calls
from gateway.cluster.forwarding import (
    ALLOCATE_PRODUCER_IDS,
    CREATE_TOPIC,
    FORWARD,
    MAX_REQUEST_BYTES,
    REQUEST_SECONDS,
    ForwardedReply,
    ForwardedRequest,
    NewTopic,
    TopicOutcome,
)
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError, Refused
from gateway.protocol.long_poll import LongPoll, acknowledge_nothing
from gateway.protocol.routes import ROUTES, EncodedReply, Route
from gateway.protocol.session import LoginSession
from gateway.protocol.tenant_messages import reply_to_client, request_from_client
from gateway.protocol.wire.header import RequestHeader, read_header
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION
from gateway.topics.tenant_scope import TenantScope
from gateway.traffic.counters import count_errors
from gateway.traffic.recorder import NULL_RECORDER
from gateway.traffic.usage import UsageCounters
from storage.log import StorageError

#: Requests of at least this many bytes are decoded on another thread: a body may contain 5,000
#: elements, which take about 10 ms. Produce is excluded: it consists mostly of records, which are
#: not decoded, and of at most `produce_codec.MAX_PARTITIONS` partitions.
LARGE_BODY_BYTES = 16 << 10

#: Minimum timeout of a forwarded request, in seconds: clients may send a timeout of 0.
_MIN_SECONDS = 1.0


def decode(route: Route, frame: bytearray, header: RequestHeader, scope: TenantScope | None) -> Any:
    """Decode a request, with internal topic names. Raises Refused if it is malformed."""
    try:
        request = route.decode(frame, header.body, header.api_version)
        return request if scope is None else request_from_client(request, header.api_version, scope)
    except Refused:
        raise
    except (ValueError, IndexError, OverflowError, TypeError, error) as unreadable:
        raise Refused(f"malformed request body: {unreadable}") from None


async def forward(route: Route, header: RequestHeader, frame: bytearray, caller: Caller) -> Any:
    """Return the controller's reply to a request of an API that runs there.

    If the controller does not reply, return a reply with an error for each item of the request.
    """
    assert route.refuse_items is not None
    request = await _decode(route, header, frame, caller)
    controller = caller.broker.controller
    try:
        if len(frame) > MAX_REQUEST_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{len(frame)} bytes in one request, limit {MAX_REQUEST_BYTES}: split the request",
            )
        principal = caller.principal
        asked = ForwardedRequest(
            caller.broker.cluster.node_id,
            caller.peer,
            caller.session.host,
            caller.listener,
            principal.kind,
            principal.name,
            principal.tenant,
            bytes(frame),
        )
        reply = await controller.forward(asked, _seconds(request))
    except KafkaError as failure:
        if failure.code is ErrorCode.NOT_CONTROLLER and controller.is_local:
            return await route.handler(request, caller)
        return await route.refuse_items(request, failure, caller)
    return EncodedReply([reply.body], reply.errors)


def _seconds(request: Any) -> float:
    """The request's timeout in seconds, within limits; the maximum if its API has none."""
    timeout_ms: int | None = getattr(request, "timeout_ms", None)
    if timeout_ms is None:
        return REQUEST_SECONDS
    return min(max(timeout_ms / 1000, _MIN_SECONDS), REQUEST_SECONDS)


async def _decode(route: Route, header: RequestHeader, frame: bytearray, caller: Caller) -> Any:
    scope = caller.session.scope
    if len(frame) < LARGE_BODY_BYTES:
        return decode(route, frame, header, scope)
    return await caller.run(decode, route, frame, header, scope)


def serve_calls(calls: Calls, broker: Broker, revision: Callable[[], int]) -> None:
    """Execute calls of other gateways to the controller.

    `revision` returns the last replayed revision of the metadata log.
    """
    calls.serve(FORWARD, partial(_execute, broker, revision))
    calls.serve(CREATE_TOPIC, partial(_create_topic, broker, revision))
    calls.serve(ALLOCATE_PRODUCER_IDS, partial(_allocate_producer_ids, broker))


def _check_controller(broker: Broker) -> None:
    if not broker.controller.is_local:
        raise CallRefused("the gateway is not the controller")


async def _execute(broker: Broker, revision: Callable[[], int], payload: bytes) -> bytes:
    """Execute a forwarded request as if its client were connected here."""
    _check_controller(broker)
    asked = msgspec.msgpack.decode(payload, type=ForwardedRequest)
    try:
        header = read_header(asked.frame, FIRST_FLEXIBLE_VERSION)
        route = ROUTES.get((header.api_key, header.api_version))
        if route is None or route.refuse_items is None:
            raise CallFailed(
                f"API key {header.api_key} v{header.api_version} does not run at the controller"
            )
        caller = _caller(broker, asked, header)
        request = await _decode(route, header, bytearray(asked.frame), caller)
    except (Refused, AuthenticationFailed) as failure:
        raise CallFailed(str(failure)) from failure
    reply = await route.handler(request, caller)
    if caller.session.scope is not None:
        reply = reply_to_client(reply, header.api_version, caller.session.scope)
    counted = UsageCounters()
    count_errors(counted, reply)
    body = b"".join(route.encode(reply, header.api_version))
    return msgspec.msgpack.encode(ForwardedReply(body, revision(), counted.errors or {}))


def _caller(broker: Broker, asked: ForwardedRequest, header: RequestHeader) -> Caller:
    session = LoginSession(None, asked.host, tenants=broker.tenants)
    session.identify(Principal(asked.kind, asked.name, asked.tenant))
    return Caller(
        broker,
        session,
        asked.peer,
        asked.listener,
        header.api_version,
        header.client_id,
        LongPoll(acknowledge_nothing),
        NULL_RECORDER,
        header.api_key,
        asked_node=asked.node_id,
    )


async def _create_topic(broker: Broker, revision: Callable[[], int], payload: bytes) -> bytes:
    _check_controller(broker)
    topic = msgspec.msgpack.decode(payload, type=NewTopic)
    code, message = ErrorCode.NONE, ""
    try:
        await broker.topics.find_or_create(topic.name, topic.partitions, topic.configs)
    except KafkaError as failure:
        code, message = failure.code, failure.message
    return msgspec.msgpack.encode(TopicOutcome(revision(), code, message))


async def _allocate_producer_ids(broker: Broker, payload: bytes) -> bytes:
    _check_controller(broker)
    try:
        block = await broker.producer_id_blocks.allocate()
    except StorageError as failure:
        # Ids of a block that may have been reserved are not used.
        raise CallRefused(str(failure)) from failure
    return msgspec.msgpack.encode((block.start, block.stop))
