"""Server-side assignors (KIP-848): range and uniform. Deterministic for equal input.

Partitions that do not exist are not assigned; topics without subscribers are ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace, nsmallest

#: A topic id, 16 bytes.
TopicId = bytes

#: Partitions by topic id. Topics without partitions are left out.
AssignedPartitions = dict[TopicId, frozenset[int]]

#: Limit on passes over all topics when balancing. If all subscribers of a topic have equal
#: subscriptions, one pass and a final check are enough; with overlapping subscriptions each pass
#: roughly halves the imbalance. Kafka's UniformHeterogeneousAssignmentBuilder also stops here.
MAX_ROUNDS = 16

_UNASSIGNED = -1


@dataclass(frozen=True, slots=True)
class Subscriber:
    """An assignor's view of a member. `owned` is the member's current target assignment."""

    instance_id: str | None
    topics: frozenset[TopicId]
    owned: Mapping[TopicId, frozenset[int]]


def assign_range(
    members: Mapping[str, Subscriber], partitions: Mapping[TopicId, int]
) -> dict[str, AssignedPartitions]:
    """Assign consecutive partitions of each topic to its subscribers (Kafka's RangeAssignor).

    If the partitions do not divide evenly, the first subscribers get one more. Members with equal
    subscriptions get the same partition numbers of all topics with equal partition counts, so that
    these topics are co-partitioned.
    """
    order = _assignment_order(members)
    assigned: dict[str, AssignedPartitions] = {member_id: {} for member_id in order}
    for topic_id, subscribers in _subscribers(members, order, partitions).items():
        least, remainder = divmod(partitions[topic_id], len(subscribers))
        start = 0
        # With fewer partitions than subscribers, only the first subscribers get one.
        for position, member in enumerate(subscribers if least else subscribers[:remainder]):
            end = start + least + (position < remainder)
            assigned[order[member]][topic_id] = frozenset(range(start, end))
            start = end
    return assigned


def assign_uniform(
    members: Mapping[str, Subscriber], partitions: Mapping[TopicId, int]
) -> dict[str, AssignedPartitions]:
    """Balance partitions per member and keep owned ones if possible (Kafka's UniformAssignor).

    No subscriber has two partitions fewer than another member that owns a partition of the same
    topic. If all members subscribe to the same topics, counts differ by at most one and a minimum
    of partitions moves. Unlike in Kafka, a member that owns one more than others keeps it, and the
    partitions of a topic are spread over its subscribers.
    """
    order = _assignment_order(members)
    load = [0] * len(order)
    existing = {
        topic_id: _Topic(topic_id, partitions[topic_id], topic_subscribers, load)
        for topic_id, topic_subscribers in _subscribers(members, order, partitions).items()
    }
    for position, member_id in enumerate(order):
        member = members[member_id]
        for topic_id in member.owned.keys() & member.topics & existing.keys():
            existing[topic_id].retain(position, member.owned[topic_id])
    # Assign the most constrained topics first: most partitions per subscriber, then fewest
    # subscribers.
    topics = sorted(
        existing.values(),
        key=lambda topic: (
            -len(topic.owners) / len(topic.subscribers),
            len(topic.subscribers),
            topic.topic_id,
        ),
    )
    if members and all(len(topic.subscribers) == len(members) for topic in topics):
        _release_excess(topics, load)
    for topic in topics:
        topic.assign_free()
    _balance(topics, load)
    assigned: dict[str, AssignedPartitions] = {member_id: {} for member_id in order}
    for topic in topics:
        for position, indexes in topic.shares().items():
            assigned[order[position]][topic.topic_id] = frozenset(indexes)
    return assigned


#: By name. The first one is the default, as in Kafka.
ASSIGNORS: Mapping[
    str, Callable[[Mapping[str, Subscriber], Mapping[TopicId, int]], dict[str, AssignedPartitions]]
] = {
    "uniform": assign_uniform,
    "range": assign_range,
}


def _assignment_order(members: Mapping[str, Subscriber]) -> list[str]:
    """Static members first, ordered by instance id, which survives restarts."""
    return sorted(
        members,
        key=lambda member_id: (
            (one := members[member_id].instance_id) is None,
            one or "",
            member_id,
        ),
    )


def _subscribers(
    members: Mapping[str, Subscriber], order: Sequence[str], partitions: Mapping[TopicId, int]
) -> dict[TopicId, Sequence[int]]:
    """Positions in `order` of each existing topic's subscribers, ascending."""
    if len({member.topics for member in members.values()}) == 1:
        all_members = range(len(order))
        return {
            topic_id: all_members
            for topic_id in sorted(members[order[0]].topics)
            if partitions.get(topic_id)
        }
    found: dict[TopicId, list[int]] = defaultdict(list)
    for position, member_id in enumerate(order):
        for topic_id in members[member_id].topics:
            found[topic_id].append(position)
    return {topic_id: found[topic_id] for topic_id in sorted(found) if partitions.get(topic_id)}


class _Topic:
    """Owners of a topic's partitions during assignment.

    `load` is the number of partitions per member over all topics, shared by all `_Topic` objects.
    """

    __slots__ = ("load", "owners", "subscribers", "topic_id")

    def __init__(
        self, topic_id: TopicId, partitions: int, subscribers: Sequence[int], load: list[int]
    ) -> None:
        self.topic_id = topic_id
        self.subscribers = subscribers
        self.owners = [_UNASSIGNED] * partitions
        self.load = load

    def retain(self, member: int, indexes: Iterable[int]) -> None:
        """Keep owned partitions that have no other owner."""
        owners = self.owners
        for index in indexes:
            if 0 <= index < len(owners) and owners[index] == _UNASSIGNED:
                owners[index] = member
                self.load[member] += 1

    def release(self, excess: dict[int, int]) -> None:
        """Release partitions of members that have an `excess`, and reduce it accordingly."""
        for index in reversed(range(len(self.owners))):
            member = self.owners[index]
            if excess.get(member):
                excess[member] -= 1
                self.load[member] -= 1
                self.owners[index] = _UNASSIGNED

    def assign_free(self) -> None:
        """Assign partitions without an owner to the members with the least load."""
        free = [index for index, owner in enumerate(self.owners) if owner == _UNASSIGNED]
        takers = self._least_loaded(len(free))
        for index in free:
            least, taken, member = takers[0]
            self.owners[index] = member
            self.load[member] = least + 1
            heapreplace(takers, (least + 1, taken + 1, member))

    def balance(self) -> bool:
        """Move partitions from the most to the least loaded subscribers.

        Returns whether any partition moved.
        """
        load, owners = self.load, self.owners
        count = load.__getitem__
        if max(map(count, owners)) - min(map(count, self.subscribers)) <= 1:
            return False
        shares = self.shares()
        givers = [(-load[member], member) for member in shares]
        heapify(givers)
        takers = self._least_loaded(len(owners))
        # The heaps do not see each other's changes. This is harmless: a giver had at least one
        # partition more than the least loaded member, a taker has at most one less than the most
        # loaded one, and the loop ends at a difference of one.
        moved = False
        while givers:
            most, giver = -givers[0][0], givers[0][1]
            least, taken, taker = takers[0]
            if most - least <= 1:
                break
            owners[shares[giver].pop()] = taker
            load[giver], load[taker] = most - 1, least + 1
            heapreplace(takers, (least + 1, taken + 1, taker))
            heappop(givers)
            if shares[giver]:
                heappush(givers, (1 - most, giver))
            moved = True
        return moved

    def shares(self) -> dict[int, list[int]]:
        """Partitions of each owner, ascending."""
        found: dict[int, list[int]] = {}
        for index, member in enumerate(self.owners):
            found.setdefault(member, []).append(index)
        return found

    def _least_loaded(self, count: int) -> list[tuple[int, int, int]]:
        """Heap of (load, partitions of this topic received, member) of the least loaded members.

        `count` members suffice: no others can receive one of `count` partitions.
        """
        return [
            (self.load[member], 0, member)
            for member in nsmallest(count, self.subscribers, key=self.load.__getitem__)
        ]


def _release_excess(topics: Sequence[_Topic], load: Sequence[int]) -> None:
    """Release partitions above an even share.

    The excess is computed over all topics. Per topic more partitions would move, because an
    overloaded member may have none of the first topic.
    """
    least, remainder = divmod(sum(len(topic.owners) for topic in topics), len(load))
    excess = {}
    for member, owned_count in enumerate(load):
        if owned_count > least:
            excess[member] = owned_count - least - (remainder > 0)
            remainder -= 1
    for topic in reversed(topics):
        topic.release(excess)


def _balance(topics: Sequence[_Topic], load: Sequence[int]) -> None:
    for _ in range(MAX_ROUNDS):
        if not load or max(load) - min(load) <= 1 or not sum(topic.balance() for topic in topics):
            return
