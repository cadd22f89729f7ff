"""One reconciliation step of a member: which partitions it keeps, releases and receives.

Follows Kafka's CurrentAssignmentBuilder (4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from msgspec.structs import replace

from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_member import (
    TRANSITIONS,
    ConsumerGroupMember,
    MemberState,
    PartitionEpochs,
    Partitions,
)

#: Whether no other member owns the partition.
IsFree = Callable[[TopicId, int], bool]

_NOTHING: Mapping[int, int] = {}
_NONE: frozenset[int] = frozenset()


def reconcile(
    member: ConsumerGroupMember,
    target_epoch: int,
    topics: Set[TopicId],
    owned: Partitions | None,
    is_free: IsFree,
    *,
    subscription_changed: bool = False,
) -> ConsumerGroupMember:
    """Return the member after one step, or the same object if there is nothing to do.

    `target_epoch` is the epoch of its target and `topics` are its subscribed topics. `owned` are
    the partitions that it reports to own, or None if it reports none. `subscription_changed` is set
    if its subscription has just changed.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return _revoke_unsubscribed(member, topics, owned) if subscription_changed else member
    if member.state is MemberState.UNREVOKED and _owns_any(owned, member.revoking):
        return _revoke_unsubscribed(member, topics, owned) if subscription_changed else member
    return _next_assignment(member, target_epoch, topics, owned, is_free)


def transition(
    member: ConsumerGroupMember,
    state: MemberState,
    epoch: int,
    assigned: PartitionEpochs,
    revoking: PartitionEpochs,
) -> ConsumerGroupMember:
    """Change a member's state. Raises RuntimeError if TRANSITIONS does not allow it."""
    if state is not member.state and state not in TRANSITIONS[member.state]:
        raise RuntimeError(f"member in state {member.state.name} cannot move to {state.name}")
    return replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking=revoking,
    )


def _next_assignment(
    member: ConsumerGroupMember,
    target_epoch: int,
    topics: Set[TopicId],
    owned: Partitions | None,
    is_free: IsFree,
) -> ConsumerGroupMember:
    kept: dict[TopicId, Mapping[int, int]] = {}
    revoking: dict[TopicId, Mapping[int, int]] = {}
    added: dict[TopicId, dict[int, int]] = {}
    is_waiting = False
    for topic in {*member.target, *member.assigned}:
        target = member.target.get(topic, _NONE) if topic in topics else _NONE
        has = member.assigned.get(topic, _NOTHING)
        if retained := {index: epoch for index, epoch in has.items() if index in target}:
            kept[topic] = retained
        if revoked := {index: epoch for index, epoch in has.items() if index not in target}:
            revoking[topic] = revoked
        missing = [index for index in target if index not in has]
        if available := {index: target_epoch for index in missing if is_free(topic, index)}:
            added[topic] = available
        is_waiting = is_waiting or len(available) < len(missing)
    if revoking and _owns_any(owned, revoking):
        # The member stays in its epoch and receives nothing until it has released these.
        return transition(member, MemberState.UNREVOKED, member.epoch, kept, revoking)
    assigned = {
        topic: {**kept.get(topic, _NOTHING), **added.get(topic, _NOTHING)}
        for topic in {*kept, *added}
    }
    return transition(
        member,
        MemberState.UNRELEASED if is_waiting else MemberState.STABLE,
        target_epoch,
        assigned,
        {},
    )


def _revoke_unsubscribed(
    member: ConsumerGroupMember, topics: Set[TopicId], owned: Partitions | None
) -> ConsumerGroupMember:
    """Revoke topics that the member no longer subscribes to, without waiting for a new target."""
    unsubscribed = [topic for topic in member.assigned if topic not in topics]
    if not unsubscribed:
        return member
    assigned = {topic: held for topic, held in member.assigned.items() if topic in topics}
    revoking = dict(member.revoking)
    for topic in unsubscribed:
        revoking[topic] = {**revoking.get(topic, _NOTHING), **member.assigned[topic]}
    if _owns_any(owned, revoking):
        return transition(member, MemberState.UNREVOKED, member.epoch, assigned, revoking)
    return transition(member, member.state, member.epoch, assigned, {})


def _owns_any(owned: Partitions | None, held: PartitionEpochs) -> bool:
    """Whether the member may still own one of these. True if it has not reported its partitions."""
    if owned is None:
        return True
    return any(
        not owned.get(topic, _NONE).isdisjoint(partitions) for topic, partitions in held.items()
    )
