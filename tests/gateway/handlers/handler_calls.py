"""Calls handlers like a client: requests are decoded and responses encoded by the codec."""

from __future__ import annotations

import importlib
from typing import Any

from gateway import handlers as handlers  # importing registers the routes
from gateway.partitions.partition import Partition
from gateway.protocol.routes import ROUTES, DelayedReply
from gateway.protocol.tenant_messages import reply_to_client, request_from_client
from storage.log import Entry
from tests.fakes.broker import BrokerEnvironment, Started, ended


def start_call(env: BrokerEnvironment, request: Any, version: int) -> Started:
    """Start a request. The result is the encoded response, empty if there is none."""
    route = ROUTES[request.API_KEY, version]
    body = route.decode(bytearray(request.encode(version=version)), 0, version)
    scope = env.session.scope
    if scope is not None:
        body = request_from_client(body, version, scope)

    async def serve() -> bytes:
        reply = await route.handler(body, env.caller(version))
        if isinstance(reply, DelayedReply):
            reply = await reply.reply
        if scope is not None and reply is not None:
            reply = reply_to_client(reply, version, scope)
        return b"" if reply is None else b"".join(map(bytes, route.encode(reply, version)))

    return Started(serve())


def response_class(request: Any) -> Any:
    """Return the codec's response class of a request."""
    kind = type(request)
    return getattr(
        importlib.import_module(kind.__module__), kind.__name__.removesuffix("Request") + "Response"
    )


def decode_response(request: Any, body: bytes, version: int) -> Any:
    """Decode a response."""
    return response_class(request).decode(body, version=version)


def call(env: BrokerEnvironment, request: Any, version: int) -> Any:
    """Return the decoded response."""
    return decode_response(request, start_call(env, request, version).result, version)


def append_entries(partition: Partition, *entries: Entry) -> None:
    """Append entries to a partition's log unchanged."""

    async def append() -> None:
        await partition.log.append(entries)

    ended(append())
