"""Routes, and the served version ranges derived from them."""

from __future__ import annotations

import gc
import weakref

import pytest
from twisted.internet.defer import Deferred

from gateway import handlers as handlers  # registers their routes
from gateway.protocol import routes
from gateway.protocol.routes import ROUTES, DelayedReply, serves, supported_versions
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import REQUESTS


@pytest.fixture
def empty(monkeypatch):
    monkeypatch.setattr(routes, "ROUTES", {})
    return routes.ROUTES


async def handler(request, caller):
    return None


async def another(request, caller):
    return None


def test_range_is_routed_from_first_to_last_version(empty):
    serves(ApiKey.METADATA, 1, 3)(handler)
    assert sorted(empty) == [(3, 1), (3, 2), (3, 3)]
    assert all(route.handler is handler for route in empty.values())


def test_version_with_two_handlers_raises(empty):
    serves(ApiKey.METADATA, 1, 3)(handler)
    with pytest.raises(ValueError, match="METADATA v3"):
        serves(ApiKey.METADATA, 3, 4)(another)


def test_ranges_of_several_handlers_are_merged(empty):
    serves(ApiKey.METADATA, 1, 3)(handler)
    serves(ApiKey.METADATA, 0, 0)(another)
    assert supported_versions() == {ApiKey.METADATA: (0, 3)}


def test_missing_version_in_range_raises(empty):
    serves(ApiKey.METADATA, 0, 0)(handler)
    serves(ApiKey.METADATA, 2, 3)(another)
    with pytest.raises(ValueError, match="METADATA"):
        supported_versions()


def test_served_ranges_are_contiguous_and_supported_by_codec():
    for key, (lowest, highest) in supported_versions().items():
        assert lowest == 0 or key not in (
            ApiKey.PRODUCE,
            ApiKey.FETCH,
            ApiKey.METADATA,
            ApiKey.LIST_OFFSETS,
            ApiKey.API_VERSIONS,
        )
        assert highest <= REQUESTS[key].max_version


@pytest.mark.parametrize(
    ("key", "first"),
    # First version with a tagged response header, from "flexibleVersions" in Kafka's definitions.
    [
        (ApiKey.PRODUCE, 9),
        (ApiKey.FETCH, 12),
        (ApiKey.LIST_OFFSETS, 6),
        (ApiKey.METADATA, 9),
        (ApiKey.SASL_AUTHENTICATE, 2),
        (ApiKey.INIT_PRODUCER_ID, 2),
        # KIP-511: never, because clients read it before they know the version.
        (ApiKey.API_VERSIONS, 99),
        # Never flexible.
        (ApiKey.SASL_HANDSHAKE, 99),
    ],
)
def test_replies_have_tagged_header_from_first_flexible_version(key, first):
    lowest, highest = supported_versions()[key]
    assert [ROUTES[key, version].has_tagged_header for version in range(lowest, highest + 1)] == [
        version >= first for version in range(lowest, highest + 1)
    ]


def test_delayed_reply_in_reference_cycle_is_collected():
    """An exception in a coroutine's variables may refer to the reply. Untracked by the garbage
    collector, each such request would leak.
    """

    class Records:
        pass

    async def reply(held):
        await Deferred()
        return held

    held = [Records()]
    gone = weakref.ref(held[0])
    later = DelayedReply(reply(held))
    held.append(later)
    later.reply.send(None)
    del held, later
    gc.collect()
    assert gone() is None
