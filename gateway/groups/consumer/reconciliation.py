"""One step of a member towards its target: what it keeps, what it gives back first, what it is given (Kafka's CurrentAssignmentBuilder, 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from msgspec.structs import replace

from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, PartitionEpochs, Partitions
from gateway.groups.consumer.consumer_states import TRANSITIONS, MemberState

#: Whether a partition may be given to this member now: nobody else has it.
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
    """The member after one step, or itself where there is none to take. `target_epoch` is the epoch of its target, `topics` what it subscribes to now,
    `owned` what it says it has, None where it says nothing; `subscription_changed` where its subscription has just changed."""
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
    """The one way from a state to another. Raises RuntimeError for an impossible one."""
    if state is not member.state and state not in TRANSITIONS[member.state]:
        raise RuntimeError(f"a member that is {member.state.name} cannot become {state.name}")
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
        # It stays in its epoch, and is given nothing, until it has given those back.
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
    """Ask it to give back what it no longer subscribes to, before there is a new target."""
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
    """Whether the member still has any of these; one that does not say what it has may have them all."""
    if owned is None:
        return True
    return any(
        not owned.get(topic, _NONE).isdisjoint(partitions) for topic, partitions in held.items()
    )
