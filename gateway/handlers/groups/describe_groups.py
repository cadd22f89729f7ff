"""ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kafka.protocol.admin.groups import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
)

from gateway.coroutines import TimeSlices
from gateway.groups.classic.classic_group import ClassicGroup, GroupState
from gateway.groups.classic.classic_member import ClassicGroupMember
from gateway.handlers.metadata import OPERATIONS_OMITTED
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation, AclResource

_Listed = ListGroupsResponse.ListedGroup
_Described = DescribeGroupsResponse.DescribedGroup
_Deleted = DeleteGroupsResponse.DeletableGroupResult


@serves(ApiKey.LIST_GROUPS, 0, 5)
async def list_groups(request: Any, caller: Caller) -> Any:
    """List the groups that this gateway coordinates.

    They include those without members and those with committed offsets only.

    v4 filters by state (KIP-518), v5 by type (KIP-848).
    """
    try:
        await caller.broker.confirm_all_groups()
    except KafkaError as refusal:
        return ListGroupsResponse(error_code=refusal.code, groups=[])
    states = {state.strip().lower() for state in request.states_filter or ()}
    types = {kind.lower() for kind in request.types_filter or ()}
    rows = []
    slices = TimeSlices(caller.broker.clock)
    sees_all = caller.may_on_cluster(AclOperation.DESCRIBE)
    for group_id, protocol_type, state, kind in _all_groups(caller):
        if (
            caller.is_visible(AclResource.GROUP, group_id)
            and (sees_all or caller.may(AclOperation.DESCRIBE, AclResource.GROUP, group_id))
            and (not states or state.lower() in states)
            and (not types or kind in types)
        ):
            rows.append(
                _Listed(
                    group_id=group_id,
                    protocol_type=protocol_type,
                    group_state=state,
                    group_type=kind,
                )
            )
        await slices.take()
    return await encode_if_large(
        ListGroupsResponse(error_code=ErrorCode.NONE, groups=rows), slices, caller
    )


def _all_groups(caller: Caller) -> Iterable[tuple[str, str, str, str]]:
    """Yield group id, protocol type, state and group type (KIP-848)."""
    groups = caller.broker.groups
    for group in groups:
        yield group.group_id, group.protocol_type, group.state.value, group.kind
    for group_id in caller.broker.offsets.groups():
        if groups.get(group_id) is None:
            yield group_id, "", GroupState.EMPTY.value, ClassicGroup.kind


@serves(ApiKey.DESCRIBE_GROUPS, 6, 6)
async def describe_groups(request: Any, caller: Caller) -> Any:
    """Return state and members of classic groups.

    Missing groups (KIP-1043) and consumer groups are errors.
    """

    def missing(group_id: str) -> Any:
        is_there = caller.broker.groups.get(group_id) is not None
        message = f"Group {group_id} {'is not a classic group' if is_there else 'not found'}."
        return not_found(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)

    return await describe_classic_groups(request, caller, missing)


async def describe_classic_groups(
    request: Any, caller: Caller, missing: Callable[[str], Any]
) -> Any:
    """The reply to a DescribeGroups.

    A group that is listed twice is described once. `missing` makes the row of a group that does not
    exist or is a consumer group, for which clients use ConsumerGroupDescribe.
    """
    rows = []
    slices, deadline = TimeSlices(caller.broker.clock), caller.broker.confirm_deadline()
    for group_id in dict.fromkeys(request.groups):
        row = await _describe(group_id, deadline, caller, missing)
        if row.authorized_operations is None:
            row.authorized_operations = (
                caller.operations_on(AclResource.GROUP, group_id)
                if request.include_authorized_operations
                else OPERATIONS_OMITTED
            )
        rows.append(row)
        await slices.take(1 + len(row.members))
    return await encode_if_large(DescribeGroupsResponse(groups=rows), slices, caller)


async def _describe(
    group_id: str, deadline: float, caller: Caller, missing: Callable[[str], Any]
) -> Any:
    try:
        caller.require(AclOperation.DESCRIBE, AclResource.GROUP, group_id)
        await caller.broker.confirm_coordinator(group_id, deadline)
    except KafkaError as refusal:
        return _refused(group_id, refusal)
    group = caller.broker.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        return _described(group)
    if group is None and caller.broker.offsets.has(group_id):
        return _empty(group_id)
    return missing(group_id)


def not_found(group_id: str, code: ErrorCode, message: str | None) -> Any:
    """The row of a group that does not exist."""
    return _Described(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=GroupState.DEAD.value,
        protocol_type="",
        protocol_data="",
        members=[],
    )


def _refused(group_id: str, refusal: KafkaError) -> Any:
    """Like Kafka's DescribeGroupsResponse.groupError: the state is unknown."""
    row = not_found(group_id, refusal.code, refusal.message)
    row.group_state = ""
    row.authorized_operations = OPERATIONS_OMITTED
    return row


def _empty(group_id: str) -> Any:
    return _Described(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=GroupState.EMPTY.value,
        protocol_type="",
        protocol_data="",
        members=[],
    )


def _described(group: ClassicGroup) -> Any:
    """Metadata and assignments are valid only while the group is stable."""
    protocol = group.protocol or "" if group.state is GroupState.STABLE else ""
    return _Described(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=protocol,
        members=[_described_member(member, protocol) for member in group.roster],
    )


def _described_member(member: ClassicGroupMember, protocol: str) -> Any:
    return _Described.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol) if protocol else b"",
        member_assignment=member.assignment if protocol else b"",
    )


@serves(ApiKey.DELETE_GROUPS, 0, 2)
async def delete_groups(request: Any, caller: Caller) -> Any:
    """Delete empty groups with their offsets. A group that is listed twice is deleted once."""
    names = list(dict.fromkeys(request.groups_names))
    rows: list[Any] = []
    slices, deadline = TimeSlices(caller.broker.clock), caller.broker.confirm_deadline()
    outcomes = await slices.gather(_delete(group_id, deadline, caller) for group_id in names)
    for group_id, outcome in zip(names, outcomes, strict=True):
        if outcome is not None and not isinstance(outcome, KafkaError):
            raise outcome
        rows.append(
            _Deleted(
                group_id=group_id, error_code=ErrorCode.NONE if outcome is None else outcome.code
            )
        )
        await slices.take()
    return await encode_if_large(DeleteGroupsResponse(results=rows), slices, caller)


async def _delete(group_id: str, deadline: float, caller: Caller) -> None:
    """Raises KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, NOT_COORDINATOR,
    COORDINATOR_NOT_AVAILABLE.
    """
    caller.require(AclOperation.DELETE, AclResource.GROUP, group_id)
    await caller.broker.confirm_coordinator(group_id, deadline)
    group = caller.broker.groups.get(group_id)
    if group is None and not caller.broker.offsets.has(group_id):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group is not None:
        group.check_empty()
    # Offsets first: if the second step fails, an empty group remains, which can be deleted again.
    await caller.broker.offsets.delete(group_id)
    await caller.broker.groups.delete(group_id)
