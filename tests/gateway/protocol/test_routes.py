"""The only statement of support, and that it is told without holes."""

from __future__ import annotations

import gc
import weakref

import pytest
from twisted.internet.defer import Deferred

from gateway import handlers as handlers  # importing them routes them
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


def test_a_range_is_routed_from_its_first_version_to_its_last(empty):
    serves(ApiKey.METADATA, 1, 3)(handler)
    assert sorted(empty) == [(3, 1), (3, 2), (3, 3)]
    assert all(route.handler is handler for route in empty.values())


def test_a_version_is_served_once(empty):
    serves(ApiKey.METADATA, 1, 3)(handler)
    with pytest.raises(ValueError, match="METADATA v3"):
        serves(ApiKey.METADATA, 3, 4)(another)


def test_ranges_of_several_handlers_are_told_as_one(empty):
    serves(ApiKey.METADATA, 1, 3)(handler)
    serves(ApiKey.METADATA, 0, 0)(another)
    assert supported_versions() == {ApiKey.METADATA: (0, 3)}


def test_a_hole_which_no_client_could_be_told_of_is_a_mistake(empty):
    serves(ApiKey.METADATA, 0, 0)(handler)
    serves(ApiKey.METADATA, 2, 3)(another)
    with pytest.raises(ValueError, match="METADATA"):
        supported_versions()


def test_what_the_gateway_serves_has_no_holes_and_goes_no_further_than_the_codec():
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
    # The first version with a tagged response header, from the definitions of Kafka's messages ("flexibleVersions").
    [
        (ApiKey.PRODUCE, 9),
        (ApiKey.FETCH, 12),
        (ApiKey.LIST_OFFSETS, 6),
        (ApiKey.METADATA, 9),
        (ApiKey.SASL_AUTHENTICATE, 2),
        (ApiKey.INIT_PRODUCER_ID, 2),
        # KIP-511: never, for a client must be able to read it before it knows the version.
        (ApiKey.API_VERSIONS, 99),
        # Never flexible at all.
        (ApiKey.SASL_HANDSHAKE, 99),
    ],
)
def test_replies_have_a_tagged_header_from_their_first_flexible_version_on(key, first):
    lowest, highest = supported_versions()[key]
    assert [ROUTES[key, version].has_tagged_header for version in range(lowest, highest + 1)] == [
        version >= first for version in range(lowest, highest + 1)
    ]


def test_a_reply_that_is_to_come_goes_with_what_it_holds_even_in_a_circle():
    """An exception in a coroutine's variables may lead back to the reply: hidden from the collector, each such request would stay for ever."""

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
