"""DescribeClientQuotas and AlterClientQuotas (KIP-546).

v0: quotas of users, client ids and pairs of both.
v1: flexible encoding.

Errors are those of Kafka's ClientQuotaControlManager and ClientQuotasImage. The quotas
controller_mutation_rate and connection_creation_rate are refused.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin.client_quotas import (
    AlterClientQuotasResponse,
    DescribeClientQuotasResponse,
)

from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import check_changes, encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation
from gateway.security.quotas import QUOTA_KEYS, QuotaAlteration, make_quota_filter

#: Parts of one entity in a request. Kafka has three types.
MAX_ENTITY_PARTS = 10

_Described = DescribeClientQuotasResponse.EntryData
_Altered = AlterClientQuotasResponse.EntryData


@serves(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1)
async def describe_client_quotas(request: Any, caller: Caller) -> Any:
    """Return the quotas of the entities that the filter selects."""
    slices = TimeSlices(caller.broker.clock)
    try:
        caller.require_cluster(AclOperation.DESCRIBE_CONFIGS)
        selected = make_quota_filter(
            ((one.entity_type, one.match_type, one.match) for one in request.components),
            is_strict=request.strict,
        )
    except KafkaError as failure:
        return DescribeClientQuotasResponse(
            error_code=failure.code, error_message=failure.message, entries=None
        )
    rows = []
    for entity, quotas in caller.broker.client_quotas:
        if selected.matches(entity):
            rows.append(
                _Described(
                    entity=[
                        _Described.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity.names.items()
                    ],
                    values=[
                        _Described.ValueData(key=key, value=quotas[key])
                        for key in QUOTA_KEYS
                        if key in quotas
                    ],
                )
            )
        await slices.take()
    reply = DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message="", entries=rows)
    return await encode_if_large(reply, slices, caller)


async def _refuse_all(request: Any, error: KafkaError, caller: Caller) -> Any:
    """Return the error for each entry, as it was sent."""
    slices = TimeSlices(caller.broker.clock)
    rows = []
    for entry in request.entries:
        entity = []
        for part in entry.entity:
            entity.append(
                _Altered.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
            )
            await slices.take()
        rows.append(_Altered(error_code=error.code, error_message=error.message, entity=entity))
        await slices.take()
    return await encode_if_large(AlterClientQuotasResponse(entries=rows), slices, caller)


@serves(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, at_controller=_refuse_all)
async def alter_client_quotas(request: Any, caller: Caller) -> Any:
    """Set and remove quotas. Valid changes are stored together, unless they are only validated."""
    slices = TimeSlices(caller.broker.clock)
    asked: list[QuotaAlteration] = []
    try:
        caller.require_cluster(AclOperation.ALTER_CONFIGS)
        check_changes(sum(max(len(entry.ops), 1) for entry in request.entries))
        for entry in request.entries:
            asked.append(_alteration(entry))
            await slices.take(1 + len(entry.ops))
        errors = await caller.broker.client_quotas.alter(
            asked, slices, validate_only=request.validate_only
        )
    except KafkaError as failure:
        return await _refuse_all(request, failure, caller)
    if not request.validate_only:
        for one in asked:
            _record_changes(one, errors[one.key], caller)
            await slices.take()
    rows = []
    for key, error in errors.items():
        rows.append(
            _Altered(
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
                entity=[
                    _Altered.EntityData(entity_type=kind, entity_name=part) for kind, part in key
                ],
            )
        )
        await slices.take()
    return await encode_if_large(AlterClientQuotasResponse(entries=rows), slices, caller)


def _alteration(entry: Any) -> QuotaAlteration:
    """Raises KafkaError(INVALID_REQUEST) for an entity of too many parts."""
    if len(entry.entity) > MAX_ENTITY_PARTS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"an entity may have at most {MAX_ENTITY_PARTS} parts"
        )
    # A type that is named twice has the last name, as in Kafka.
    names = {part.entity_type: part.entity_name for part in entry.entity}
    return QuotaAlteration(names, [(op.key, None if op.remove else op.value) for op in entry.ops])


def _record_changes(asked: QuotaAlteration, error: KafkaError | None, caller: Caller) -> None:
    """Write the changes of an entity to the audit log, as `user=alice producer_byte_rate=1024`."""
    entity = ",".join(f"{kind}={'<default>' if name is None else name}" for kind, name in asked.key)
    for key, value in asked.values:
        caller.broker.audit.changed(
            caller.peer,
            caller.listener,
            caller.principal,
            "quota",
            "remove" if value is None else "set",
            f"{entity} {key}" if value is None else f"{entity} {key}={value:g}",
            ErrorCode.NONE if error is None else error.code,
        )
