"""Committed offsets as subscriptions, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pulsar as client_library
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.mirrored_cursors import CursorMirror, CursorPosition
from storage.pulsar.topics.pulsar_names import path_of
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

MESSAGES = 10


class Scene:
    """A topic with ten messages and a mirror; offset n is entry n. Topic `gone` does not exist."""

    def __init__(self, tenant: Tenant, settings: PulsarSettings) -> None:
        self.tenant = tenant
        name = f"persistent://{settings.tenant}/{settings.namespace}/orders"
        self.path = path_of(name).lstrip("/")
        tenant.admin("PUT", self.path)
        self.client = client_library.Client(
            tenant.service_url,
            logger=client_library.ConsoleLogger(client_library.LoggerLevel.Error),
        )
        producer = self.client.create_producer(name)
        self.ids = [producer.send(b"%d" % number) for number in range(MESSAGES)]
        self.name = name
        self.admin = PulsarAdmin(settings, reactor)
        self.mirror = CursorMirror(self.admin, self.place, reactor, settings)

    async def place(self, topic: str, partition: int, offset: int) -> CursorPosition | None:
        return (
            None
            if topic == "gone"
            else CursorPosition(
                f"/{self.path}", self.ids[0].ledger_id(), self.ids[0].entry_id() + offset
            )
        )

    def backlog(self, group: str) -> int | None:
        subscriptions: dict[str, Any] = self.tenant.admin("GET", f"{self.path}/stats")[
            "subscriptions"
        ]
        return subscriptions[group]["msgBacklog"] if group in subscriptions else None

    async def until(self, group: str, backlog: int) -> None:
        while self.backlog(group) != backlog:
            await after(0.05)


def after(seconds: float) -> Deferred[None]:
    over: Deferred[None] = Deferred()
    reactor.callLater(seconds, over.callback, None)
    return over


@pytest.fixture
def scene(pulsar: Tenant) -> Iterator[Scene]:
    made = Scene(
        pulsar,
        pulsar.settings(
            mirror_cursors=True, mirror_seconds=0.05, mirror_moves_per_second=1000, mirror_waiting=2
        ),
    )
    made.mirror.start()
    yield made
    made.mirror.stop()
    settle(made.admin.close())
    made.client.close()


@ensureDeferred
async def test_committed_offset_becomes_subscription_with_its_backlog(scene: Scene) -> None:
    scene.mirror.note("billing", "orders", 0, 4)
    await scene.until("billing", MESSAGES - 4)


@ensureDeferred
async def test_cursor_follows_commits_in_both_directions(scene: Scene) -> None:
    for offset in (4, MESSAGES, 2):
        scene.mirror.note("billing", "orders", 0, offset)
        await scene.until("billing", MESSAGES - offset)


@ensureDeferred
async def test_group_name_may_contain_any_characters(scene: Scene) -> None:
    scene.mirror.note("a group/of: ünusual name?", "orders", 0, 1)
    await scene.until("a group/of: ünusual name?", MESSAGES - 1)


@ensureDeferred
async def test_foreign_subscription_is_not_moved(scene: Scene) -> None:
    scene.client.subscribe(
        scene.name, "theirs", initial_position=client_library.InitialPosition.Earliest
    ).close()
    scene.mirror.note("theirs", "orders", 0, 7)
    scene.mirror.note("ours", "orders", 0, 7)
    await scene.until("ours", MESSAGES - 7)
    assert scene.backlog("theirs") == MESSAGES


@ensureDeferred
async def test_deleted_subscription_is_recreated_by_next_commit(scene: Scene) -> None:
    scene.mirror.note("billing", "orders", 0, 1)
    await scene.until("billing", MESSAGES - 1)
    scene.tenant.admin("DELETE", f"{scene.path}/subscription/billing")
    while scene.backlog("billing") is None:
        scene.mirror.note("billing", "orders", 0, 5)
        await after(0.1)
    await scene.until("billing", MESSAGES - 5)


@ensureDeferred
async def test_unknown_position_does_not_delay_other_groups(scene: Scene) -> None:
    scene.mirror.note("billing", "gone", 0, 1)
    scene.mirror.note("billing", "orders", 0, 3)
    await scene.until("billing", MESSAGES - 3)


@ensureDeferred
async def test_recorded_offsets_are_limited_and_replaced_by_newer(
    scene: Scene,
) -> None:
    scene.mirror.note("a", "orders", 0, 1)
    scene.mirror.note("b", "orders", 0, 1)
    scene.mirror.note("c", "orders", 0, 1)
    scene.mirror.note("a", "orders", 0, 2)
    await scene.until("a", MESSAGES - 2)
    await scene.until("b", MESSAGES - 1)
    assert scene.backlog("c") is None


@ensureDeferred
async def test_internal_groups_are_not_mirrored(scene: Scene) -> None:
    scene.mirror.note("__kopgate_compaction", "orders", 0, 4)
    scene.mirror.note("billing", "orders", 0, 4)
    await scene.until("billing", MESSAGES - 4)
    assert scene.backlog("__kopgate_compaction") is None


def test_groups_named_with_one_or_two_dots_are_not_mirrored() -> None:
    asked: list[str] = []

    async def place(topic: str, partition: int, offset: int) -> None:
        asked.append(topic)

    clock = Clock()
    settings = PulsarSettings("pulsar://127.0.0.1:1", "http://127.0.0.1:1")
    mirror = CursorMirror(cast(Any, None), place, cast(Any, clock), settings)
    for group, topic in ((".", "one dot"), ("..", "two dots"), ("...", "three dots")):
        mirror.note(group, topic, 0, 1)
    mirror.start()
    clock.advance(settings.mirror_seconds)
    clock.advance(settings.mirror_seconds)
    mirror.stop()
    assert asked == ["three dots"]
