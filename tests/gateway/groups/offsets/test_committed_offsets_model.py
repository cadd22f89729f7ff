"""Invariants of committed offsets under concurrent commits, deletions, crashes and disk failures:

- A group's offset is that of its last acknowledged commit, also after a crash.
- An unacknowledged commit or deletion is never partly visible.
- No offset outlives its topic or applies to a later topic with the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import KafkaError
from tests.examples import scaled
from tests.fakes.broker import BrokerEnvironment, Started, ended, open_environment

TOPICS = ("orders", "bills")
OffsetPlace = tuple[str, str, int]
"""Group, topic, partition."""

groups = st.sampled_from(("g", "h"))
topics = st.sampled_from(TOPICS)
places = st.tuples(topics, st.integers(0, 1))
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("commit"), groups, st.dictionaries(places, st.integers(0, 100), min_size=1)
        ),
        st.tuples(
            st.just("commit"), groups, st.dictionaries(places, st.integers(0, 100), min_size=1)
        ),
        st.tuples(st.just("delete_group"), groups),
        st.tuples(st.just("delete_offsets"), groups, st.lists(places, max_size=3)),
        st.tuples(st.just("delete_topic"), topics),
        st.tuples(st.just("create_topic"), topics),
        st.tuples(st.just("hold")),
        st.tuples(st.just("release")),
        st.tuples(st.just("refuse"), st.booleans()),
        st.tuples(st.just("crash")),
    ),
    max_size=30,
)


class GatewayModel:
    """A gateway and its model.

    The model has the acknowledged offsets, and the effect of each request once it is answered.
    """

    def __init__(self) -> None:
        self.env: BrokerEnvironment = open_environment()
        self.acknowledged: dict[OffsetPlace, int] = {}
        self.ids: dict[str, bytes] = {}
        self.under_way: list[tuple[Started, Callable[[], None]]] = []
        self.is_held = False
        for name in TOPICS:
            self.create_topic(name)

    def ask(self, work: Coroutine[Any, Any, None], then: Callable[[], None]) -> None:
        self.under_way.append((Started(work), then))
        if not self.is_held:
            self.settle()

    def settle(self) -> None:
        answered, self.under_way = self.under_way, []
        for asked, then in answered:
            assert asked.is_done
            if asked.failure is None:
                then()
            else:
                assert isinstance(asked.failure, KafkaError)

    def commit(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        ids = dict(self.ids)

        def then() -> None:
            for (topic, partition), offset in offsets.items():
                if self.ids.get(topic) == ids[topic]:
                    self.acknowledged[group, topic, partition] = offset

        rows = {place: CommittedOffset(offset, -1, "", 1) for place, offset in offsets.items()}
        self.ask(self.env.broker.offsets.commit(group, rows), then)

    def delete_group(self, group: str) -> None:
        self._delete(
            [place for place in self.acknowledged if place[0] == group],
            self.env.broker.offsets.delete(group),
        )

    def delete_offsets(self, group: str, asked: list[tuple[str, int]]) -> None:
        gone = [
            place
            for topic, partition in asked
            if (place := (group, topic, partition)) in self.acknowledged
        ]
        self._delete(gone, self.env.broker.offsets.delete(group, asked))

    def _delete(self, gone: list[OffsetPlace], work: Coroutine[Any, Any, None]) -> None:
        def then() -> None:
            for place in gone:
                self.acknowledged.pop(place, None)

        self.ask(work, then)

    def delete_topic(self, name: str) -> None:
        live = self.env.broker.topics.get(name)
        if live is None:
            return

        async def delete() -> None:
            await self.env.broker.topics.delete(live)
            await self.env.broker.offsets.delete_topic(live.topic)

        def then() -> None:
            self.ids.pop(name, None)
            self.acknowledged = {
                place: offset for place, offset in self.acknowledged.items() if place[1] != name
            }

        self.ask(delete(), then)

    def create_topic(self, name: str) -> None:
        if self.is_held or self.env.store.refuse_writes or name in self.ids:
            return
        self.ids[name] = self.env.topic(name, 2).topic.topic_id

    def hold(self) -> None:
        self.is_held = True
        self.env.store.hold()

    def release(self) -> None:
        self.is_held = False
        self.env.store.release()
        self.settle()

    def refuse(self, does: bool) -> None:
        self.env.store.refuse_writes = does

    def crash(self) -> None:
        self.under_way, self.is_held = [], False
        self.env.store.medium.held_by = None
        self.env = open_environment(self.env.store.medium)

    def check(self) -> None:
        offsets = self.env.broker.offsets
        seen = {
            (group, *place): row.offset
            for group in ("g", "h")
            for place, row in offsets.of_group(group).items()
        }
        assert seen == self.acknowledged
        if not self.is_held:
            assert len(offsets) == len(seen), "rows without a topic are counted"
            assert set(offsets.groups()) == {place[0] for place in seen}
            assert not any(map(offsets.is_committing, ("g", "h")))


@settings(max_examples=scaled(150))
@given(steps)
def test_offset_is_that_of_last_acknowledged_commit(taken):
    life = GatewayModel()
    for name, *arguments in taken:
        known = name != "commit" or all(topic in life.ids for topic, _ in arguments[1])
        if known:
            getattr(life, name)(*arguments)
        life.check()
    life.crash()
    life.check()
    assert len(ended(ended(life.env.store.table("offsets")).items())) == len(life.acknowledged), (
        "rows are left over"
    )
