"""Test harness for consumer groups: a group, a clock, and the replies to its members."""

from __future__ import annotations

from typing import Any

from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.groups.classic.subscription import encode_assignment
from gateway.groups.consumer.consumer_group import ConsumerGroup
from gateway.groups.consumer.consumer_member import HeartbeatResult, MemberHeartbeat
from gateway.groups.group_effects import Reply, StoreRows
from gateway.settings.model import Settings
from tests.fakes.topology import FakeTopology, id_of

START = 1_700_000_000_000
SESSION = 45_000
REBALANCE = 60_000

A = id_of("a")

#: Topic of members with the classic protocol.
TOPIC = "orders"


class ConsumerGroupHarness:
    """A consumer group whose writes complete at once unless `holds_writes` is set.

    Times are in milliseconds.
    """

    def __init__(self, partitions: int = 4, **settings: Any) -> None:
        self.topology = FakeTopology()
        self.topology.make("a", partitions)
        self.settings = Settings(**{"group_consumer_assignment_interval_ms": 0, **settings})
        self.now = START
        self.group = ConsumerGroup("g", self.topology, self.settings, self.now)
        self.answers: dict[int, HeartbeatResult | JoinResult | SyncResult] = {}
        self.writes: list[StoreRows] = []
        self.holds_writes = False
        self.count = 0

    def act(self) -> None:
        while effects := self.group.take_effects():
            for effect in effects:
                if isinstance(effect, Reply):
                    self.answers[effect.handle] = effect.result
                elif isinstance(effect, StoreRows):
                    self.writes.append(effect)
                    if not self.holds_writes:
                        self.group.on_stored(effect)

    def heartbeat(self, member_id: str, epoch: int = 0, **words: Any) -> HeartbeatResult | None:
        """Send a heartbeat; at epoch 0 with all fields, otherwise only the given ones.

        Returns None while the reply is waiting.
        """
        if epoch == 0:
            words = {
                "rebalance_timeout_ms": REBALANCE,
                "topics": frozenset({"a"}),
                "owned": {},
                **words,
            }
        self.count += 1
        self.group.consumer_heartbeat(
            MemberHeartbeat(member_id, epoch, **words), self.count, self.now
        )
        self.act()
        return self.answers.get(self.count)

    def join(
        self, member_id: str, metadata: bytes, *, protocol: str = "range", **words: Any
    ) -> JoinResult | None:
        self.count += 1
        fields = {"instance_id": None, "requires_member_id": False, **words}
        joining = MemberJoin(
            member_id,
            fields["instance_id"],
            "c",
            "/h",
            "consumer",
            ((protocol, metadata),),
            SESSION,
            REBALANCE,
            fields["requires_member_id"],
        )
        self.group.join(joining, member_id or f"new-{self.count}", self.count, self.now)
        self.act()
        return self.answers.get(self.count)

    def sync(
        self, member_id: str, generation: int, instance_id: str | None = None
    ) -> SyncResult | None:
        self.count += 1
        self.group.sync(MemberSync(member_id, instance_id, generation), self.count, self.now)
        self.act()
        return self.answers.get(self.count)

    def pass_time(self, ms: float) -> None:
        self.now += ms
        self.group.expire(self.now)
        self.act()


def of(*indexes: int) -> dict[bytes, frozenset[int]]:
    """Partitions of topic a."""
    return {A: frozenset(indexes)} if indexes else {}


def metadata_of(owned: set[int]) -> bytes:
    """A v1 subscription to TOPIC with owned partitions, encoded like an assignment."""
    head = (
        b"\0\1" + b"\0\0\0\1" + len(TOPIC).to_bytes(2, "big") + TOPIC.encode() + b"\xff\xff\xff\xff"
    )
    said = encode_assignment({TOPIC: frozenset(owned)} if owned else {}, b"\0\1")
    return head + said[2:-4]
