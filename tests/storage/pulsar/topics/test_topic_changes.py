"""Topic changes whose answers are lost although the broker made them."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor, task
from twisted.internet.threads import deferToThread
from twisted.web.http import Request
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from storage.log import StorageFailed
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.topics.topic_catalog import TopicCatalog
from tests.storage.entries import topic
from tests.storage.pulsar.topics.fake_topics import alone_in_cluster
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer


class Forgetful(Resource):
    """Proxies the admin API; for the methods in `forgets` it closes the connection instead of
    answering.
    """

    isLeaf = True

    def __init__(self, admin_url: str) -> None:
        super().__init__()
        self.forgets: set[str] = set()
        self._admin_url = admin_url
        self._port: Any = reactor.listenTCP(0, Site(self), interface="127.0.0.1")
        self.url = f"http://127.0.0.1:{self._port.getHost().port}"

    def render(self, request: Request) -> int:
        method, body = request.method.decode(), request.content.read()
        headers = {"Content-Type": request.getHeader("content-type") or "application/json"}
        handed_on = deferToThread(
            forward, method, self._admin_url + request.uri.decode(), body, headers
        )

        def answer(result: tuple[int, bytes]) -> None:
            if method in self.forgets:
                request.transport.abortConnection()
                return
            request.setResponseCode(result[0])
            request.write(result[1])
            request.finish()

        handed_on.addCallback(answer)
        return NOT_DONE_YET

    async def stop(self) -> None:
        await self._port.stopListening()


def forward(method: str, url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    sent = urllib.request.Request(url, body or None, headers, method=method)
    try:
        with urllib.request.urlopen(sent, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


@pytest.fixture
def between(pulsar: Tenant) -> Iterator[Forgetful]:
    made = Forgetful(pulsar.admin_url)
    yield made
    settle(made.stop())


@pytest.fixture
def catalogue(pulsar: Tenant, between: Forgetful) -> Iterator[TopicCatalog]:
    settings = pulsar.settings(admin_url=between.url)
    admin = PulsarAdmin(settings, reactor)
    made = TopicCatalog(settings, admin, task.Clock(), alone_in_cluster())
    settle(made.lead())
    yield made
    made.close()
    settle(admin.close())


@ensureDeferred
async def test_create_succeeds_despite_lost_answer(
    catalogue: TopicCatalog, between: Forgetful
) -> None:
    between.forgets = {"PUT"}
    await catalogue.create(topic("orders", 2, {"a": "b"}))
    assert dict(catalogue.topics) == {"orders": topic("orders", 2, {"a": "b"})}
    between.forgets = set()
    await catalogue.refresh()
    assert dict(catalogue.topics) == {"orders": topic("orders", 2, {"a": "b"})}


@ensureDeferred
async def test_create_with_unknown_outcome_fails_until_refresh(
    catalogue: TopicCatalog, between: Forgetful
) -> None:
    between.forgets = {"PUT", "GET"}
    with pytest.raises(StorageFailed, match="cannot be reached"):
        await catalogue.create(topic("orders"))
    assert dict(catalogue.topics) == {}
    between.forgets = set()
    await catalogue.refresh()
    assert dict(catalogue.topics) == {"orders": topic("orders")}


@ensureDeferred
async def test_delete_succeeds_despite_lost_answer(
    catalogue: TopicCatalog, between: Forgetful
) -> None:
    await catalogue.create(topic("orders", 2))
    between.forgets = {"DELETE"}
    await catalogue.delete("orders")
    assert dict(catalogue.topics) == {}
    between.forgets = set()
    await catalogue.refresh()
    assert dict(catalogue.topics) == {}


@ensureDeferred
async def test_partly_altered_topic_is_shown_and_can_be_altered_again(
    catalogue: TopicCatalog, between: Forgetful
) -> None:
    told: list[int] = []
    await catalogue.create(topic("orders", 1, {"old": "1"}))
    catalogue.watch(lambda: told.append(1))
    between.forgets = {"POST"}
    with pytest.raises(StorageFailed):
        await catalogue.alter(topic("orders", 3, {"new": "2"}))
    assert catalogue.topics["orders"] == topic("orders", 3, {"old": "1"})
    assert told == [1]
    between.forgets = set()
    await catalogue.alter(topic("orders", 3, {"new": "2"}))
    await catalogue.refresh()
    assert catalogue.topics["orders"] == topic("orders", 3, {"new": "2"})
