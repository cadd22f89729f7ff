"""Asks a handler as a client would: the request goes through its decoder, the reply through its encoder, and both through the codec."""

from __future__ import annotations

import importlib
from typing import Any

from gateway import handlers as handlers  # importing them routes them
from gateway.partitions.partition import Partition
from gateway.protocol.routes import ROUTES, DelayedReply
from storage.log import Entry
from tests.fakes.broker import BrokerEnvironment, Started, ended


def start_call(env: BrokerEnvironment, request: Any, version: int) -> Started:
    """The request under way; its result is the reply's body in bytes, none where no reply is wanted."""
    route = ROUTES[request.API_KEY, version]
    body = route.decode(bytearray(request.encode(version=version)), 0, version)

    async def serve() -> bytes:
        reply = await route.handler(body, env.caller(version))
        if isinstance(reply, DelayedReply):
            reply = await reply.reply
        return b"" if reply is None else b"".join(map(bytes, route.encode(reply, version)))

    return Started(serve())


def response_class(request: Any) -> Any:
    """The codec's class of the reply to such a request."""
    kind = type(request)
    return getattr(
        importlib.import_module(kind.__module__), kind.__name__.removesuffix("Request") + "Response"
    )


def decode_response(request: Any, body: bytes, version: int) -> Any:
    """What a reply's body says."""
    return response_class(request).decode(body, version=version)


def call(env: BrokerEnvironment, request: Any, version: int) -> Any:
    """The reply, decoded."""
    return decode_response(request, start_call(env, request, version).result, version)


def append_entries(partition: Partition, *entries: Entry) -> None:
    """Put entries into a partition's log as they are."""

    async def append() -> None:
        await partition.log.append(entries)

    ended(append())
