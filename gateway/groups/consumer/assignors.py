"""Who reads what in a consumer group (KIP-848): Kafka's two assignors that run on the server's side. Pure: the same group is always assigned alike.

What is not there to be read (a topic that has gone, partitions past a topic's last) is given to nobody, and a topic that nobody subscribes to is left alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace, nsmallest

#: A topic's 16 bytes.
TopicId = bytes

#: Partitions by topic; a topic of which there are none is left out.
AssignedPartitions = dict[TopicId, frozenset[int]]

#: How often all topics are gone over to level what members have. One round and one more that finds nothing to do are enough where subscribers of a
#: topic subscribe to all the same; where subscriptions overlap a round roughly halves what is left. Kafka's UniformHeterogeneousAssignmentBuilder
#: stops here as well.
MAX_ROUNDS = 16

_UNASSIGNED = -1


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it; `owned` is what its group means it to have so far."""

    instance_id: str | None
    topics: frozenset[TopicId]
    owned: Mapping[TopicId, frozenset[int]]


def assign_range(
    members: Mapping[str, Subscriber], partitions: Mapping[TopicId, int]
) -> dict[str, AssignedPartitions]:
    """Of each topic, consecutive partitions to each subscriber, the first ones one more where they do not divide (Kafka's RangeAssignor).

    Members that subscribe to the same topics get the same partitions of all topics that have equally many, so that these can be joined.
    """
    order = _assignment_order(members)
    assigned: dict[str, AssignedPartitions] = {member_id: {} for member_id in order}
    for topic_id, subscribers in _subscribers(members, order, partitions).items():
        least, remainder = divmod(partitions[topic_id], len(subscribers))
        start = 0
        # Where there are more subscribers than partitions, all after the last partition's get nothing.
        for position, member in enumerate(subscribers if least else subscribers[:remainder]):
            end = start + least + (position < remainder)
            assigned[order[member]][topic_id] = frozenset(range(start, end))
            start = end
    return assigned


def assign_uniform(
    members: Mapping[str, Subscriber], partitions: Mapping[TopicId, int]
) -> dict[str, AssignedPartitions]:
    """Equally many partitions to each as far as can be, and what is owned stays where that allows it (Kafka's UniformAssignor).

    No subscriber of a topic has two partitions fewer than one who could give it a partition of this topic. Where all subscribe to the same, no two
    members differ by more than one, and nothing moves that need not. Unlike Kafka's, who has one more than others keeps it, and the partitions of a
    topic are spread over its subscribers.
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
    # Those with the least choice come first: many partitions to a subscriber, then few subscribers.
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


#: By the name that clients ask for. The first one is taken where they ask for none, as in Kafka.
ASSIGNORS: Mapping[
    str, Callable[[Mapping[str, Subscriber], Mapping[TopicId, int]], dict[str, AssignedPartitions]]
] = {
    "uniform": assign_uniform,
    "range": assign_range,
}


def _assignment_order(members: Mapping[str, Subscriber]) -> list[str]:
    """Static members first, by instance id: it stays when they start anew, their member id does not."""
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
    """Of each topic that is there, in order of their ids: its subscribers' places in `order`, ascending."""
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
    """The partitions of one topic while it is decided whose they are. `load` counts the partitions of all topics by member; it is shared."""

    __slots__ = ("load", "owners", "subscribers", "topic_id")

    def __init__(
        self, topic_id: TopicId, partitions: int, subscribers: Sequence[int], load: list[int]
    ) -> None:
        self.topic_id = topic_id
        self.subscribers = subscribers
        self.owners = [_UNASSIGNED] * partitions
        self.load = load

    def retain(self, member: int, indexes: Iterable[int]) -> None:
        """A subscriber has what it had, unless another one has it."""
        owners = self.owners
        for index in indexes:
            if 0 <= index < len(owners) and owners[index] == _UNASSIGNED:
                owners[index] = member
                self.load[member] += 1

    def release(self, excess: dict[int, int]) -> None:
        """Members give up what is theirs, until each has given up its `excess`."""
        for index in reversed(range(len(self.owners))):
            member = self.owners[index]
            if excess.get(member):
                excess[member] -= 1
                self.load[member] -= 1
                self.owners[index] = _UNASSIGNED

    def assign_free(self) -> None:
        """What nobody has goes to those who have least."""
        free = [index for index, owner in enumerate(self.owners) if owner == _UNASSIGNED]
        takers = self._least_loaded(len(free))
        for index in free:
            least, taken, member = takers[0]
            self.owners[index] = member
            self.load[member] = least + 1
            heapreplace(takers, (least + 1, taken + 1, member))

    def balance(self) -> bool:
        """Partitions go from those who have most to those who have least while that brings them nearer; True where one went."""
        load, owners = self.load, self.owners
        count = load.__getitem__
        if max(map(count, owners)) - min(map(count, self.subscribers)) <= 1:
            return False
        shares = self.shares()
        givers = [(-load[member], member) for member in shares]
        heapify(givers)
        takers = self._least_loaded(len(owners))
        # Neither heap learns what the other one's moves make of a member. It does not matter: who gave had at least one more than who has least, who
        # took has at most one less than who has most, and at a difference of one this ends.
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
        """What each owner has, ascending."""
        found: dict[int, list[int]] = {}
        for index, member in enumerate(self.owners):
            found.setdefault(member, []).append(index)
        return found

    def _least_loaded(self, count: int) -> list[tuple[int, int, int]]:
        """A heap of (load, partitions of this topic taken, member) of the `count` who have least: so many partitions reach nobody else."""
        return [
            (self.load[member], 0, member)
            for member in nsmallest(count, self.subscribers, key=self.load.__getitem__)
        ]


def _release_excess(topics: Sequence[_Topic], load: Sequence[int]) -> None:
    """Whoever has more than an even share gives up the rest. Topic by topic more would move: who has too many may have none of the first topic."""
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
