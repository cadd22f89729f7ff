"""DescribeAcls, CreateAcls and DeleteAcls.

v0: literal patterns only.
v1: pattern types (KIP-290).
v2-3: flexible; v3 adds resource type USER (KIP-373).

Unless ACLs decide, the answer is SECURITY_DISABLED. The rules are those of Kafka's AclApis and
AclControlManager.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin.acl import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse

from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import check_changes, encode_if_large, reply_with_rows
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPattern,
    AclResource,
    make_binding,
    make_filter,
)
from gateway.security.authorizer import AclAuthorizer

#: First version with pattern types. In v0 all patterns are literal.
_FIRST_WITH_PATTERNS = 1

_Resource = DescribeAclsResponse.DescribeAclsResource
_Created = CreateAclsResponse.AclCreationResult
_Deleted = DeleteAclsResponse.DeleteAclsFilterResult


@serves(ApiKey.DESCRIBE_ACLS, 0, 3)
async def describe_acls(request: Any, caller: Caller) -> Any:
    """Return the ACLs that a filter selects, by resource."""
    slices = TimeSlices(caller.broker.clock)
    try:
        caller.require_cluster(AclOperation.DESCRIBE)
        authorizer = _authorizer(caller, "No Authorizer is configured on the broker")
        found = await _select(_filter(request, caller), authorizer, slices)
    except KafkaError as failure:
        return DescribeAclsResponse(
            error_code=failure.code, error_message=failure.message, resources=[]
        )
    resources: dict[tuple[AclResource, str, AclPattern], list[Any]] = {}
    for one in found:
        resources.setdefault((one.resource, one.name, one.pattern), []).append(
            _Resource.AclDescription(
                principal=one.principal,
                host=one.host,
                operation=one.operation,
                permission_type=one.permission,
            )
        )
        await slices.take()
    rows = []
    for (resource, name, pattern), acls in sorted(resources.items()):
        rows.append(
            _Resource(resource_type=resource, resource_name=name, pattern_type=pattern, acls=acls)
        )
        await slices.take()
    return await encode_if_large(
        DescribeAclsResponse(error_code=ErrorCode.NONE, error_message=None, resources=rows),
        slices,
        caller,
    )


async def _refuse_creations(request: Any, error: KafkaError, caller: Caller) -> Any:
    return await reply_with_rows(
        request.creations,
        lambda _: _Created(error_code=error.code, error_message=error.message),
        lambda rows: CreateAclsResponse(results=rows),
        caller,
    )


@serves(ApiKey.CREATE_ACLS, 0, 3, at_controller=_refuse_creations)
async def create_acls(request: Any, caller: Caller) -> Any:
    """Add ACLs. Adding one that exists already succeeds."""
    slices = TimeSlices(caller.broker.clock)
    checked: list[AclBinding | KafkaError] = []
    refusal = None
    try:
        caller.require_cluster(AclOperation.ALTER)
        authorizer = _authorizer(caller)
        check_changes(len(request.creations))
        for asked in request.creations:
            checked.append(_binding(asked, caller))
            await slices.take()
        await authorizer.add([one for one in checked if isinstance(one, AclBinding)], slices)
    except KafkaError as failure:
        refusal = failure
        checked += [failure] * (len(request.creations) - len(checked))
    rows = []
    for one in checked:
        error = one if isinstance(one, KafkaError) else refusal
        if isinstance(one, AclBinding):
            _record_change("add", one, error, caller)
        rows.append(
            _Created(error_code=ErrorCode.NONE, error_message=None)
            if error is None
            else _Created(error_code=error.code, error_message=error.message)
        )
        await slices.take()
    return await encode_if_large(CreateAclsResponse(results=rows), slices, caller)


async def _refuse_deletions(request: Any, error: KafkaError, caller: Caller) -> Any:
    return await reply_with_rows(
        request.filters,
        lambda _: _Deleted(error_code=error.code, error_message=error.message, matching_acls=[]),
        lambda rows: DeleteAclsResponse(filter_results=rows),
        caller,
    )


@serves(ApiKey.DELETE_ACLS, 0, 3, at_controller=_refuse_deletions)
async def delete_acls(request: Any, caller: Caller) -> Any:
    """Remove the ACLs that the filters select, and return them."""
    slices = TimeSlices(caller.broker.clock)
    found: list[list[AclBinding] | KafkaError] = []
    refusal = None
    try:
        caller.require_cluster(AclOperation.ALTER)
        authorizer = _authorizer(caller)
        check_changes(len(request.filters))
        for asked in request.filters:
            try:
                found.append(await _select(_filter(asked, caller), authorizer, slices))
            except KafkaError as failure:
                found.append(failure)
        chosen = [one for each in found if isinstance(each, list) for one in each]
        check_changes(len(set(chosen)))
        await authorizer.remove(chosen, slices)
    except KafkaError as failure:
        refusal = failure
        found += [failure] * (len(request.filters) - len(found))
    rows = []
    for each in found:
        error = each if isinstance(each, KafkaError) else refusal
        if error is not None:
            rows.append(
                _Deleted(error_code=error.code, error_message=error.message, matching_acls=[])
            )
            continue
        matching = []
        for one in each if isinstance(each, list) else ():
            _record_change("remove", one, None, caller)
            matching.append(_deleted_row(one))
            await slices.take()
        rows.append(_Deleted(error_code=ErrorCode.NONE, error_message=None, matching_acls=matching))
        await slices.take()
    return await encode_if_large(DeleteAclsResponse(filter_results=rows), slices, caller)


def _record_change(
    action: str, binding: AclBinding, error: KafkaError | None, caller: Caller
) -> None:
    """Write the change to the audit log."""
    caller.broker.audit.changed(
        caller.peer,
        caller.listener,
        caller.principal,
        "acl",
        action,
        f"{binding.permission.name} {binding.principal} from {binding.host} "
        f"{binding.operation.name} {binding.resource.name}:{binding.name} "
        f"({binding.pattern.name})",
        ErrorCode.NONE if error is None else error.code,
    )


def _authorizer(caller: Caller, message: str = "No Authorizer is configured.") -> AclAuthorizer:
    """Raises KafkaError(SECURITY_DISABLED) unless ACLs decide."""
    if not isinstance(caller.broker.authorizer, AclAuthorizer):
        raise KafkaError(ErrorCode.SECURITY_DISABLED, message)
    return caller.broker.authorizer


async def _select(
    selected: AclFilter, authorizer: AclAuthorizer, slices: TimeSlices
) -> list[AclBinding]:
    found = []
    for one in authorizer.bindings():
        if selected.matches(one):
            found.append(one)
        await slices.take()
    return found


def _filter(asked: Any, caller: Caller) -> AclFilter:
    """Raises KafkaError(INVALID_REQUEST)."""
    return make_filter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter
        if caller.api_version >= _FIRST_WITH_PATTERNS
        else AclPattern.LITERAL,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _binding(asked: Any, caller: Caller) -> AclBinding | KafkaError:
    try:
        return make_binding(
            asked.resource_type,
            asked.resource_name,
            asked.resource_pattern_type
            if caller.api_version >= _FIRST_WITH_PATTERNS
            else AclPattern.LITERAL,
            asked.principal,
            asked.host,
            asked.operation,
            asked.permission_type,
        )
    except KafkaError as failure:
        return failure


def _deleted_row(one: AclBinding) -> Any:
    return _Deleted.DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=one.resource,
        resource_name=one.name,
        pattern_type=one.pattern,
        principal=one.principal,
        host=one.host,
        operation=one.operation,
        permission_type=one.permission,
    )
